#!/usr/bin/env bash
# engine.sh IMAGE CMD [ARGS…]: run CMD against a real, throw-away Docker engine, which has deploy/Dockerfile as IMAGE.
#
# For machines without an engine, such as those of CI. Needs Debian 12, root and apt: it installs buildah, debootstrap,
# iptables and iproute2 where they are missing, and unpacks dockerd, containerd and compose v2 without installing them,
# into ${XDG_CACHE_HOME:-~/.cache}/agentq-engine. dockerd runs in a network namespace of its own, so it changes nothing
# of this machine's network; its containers reach each other, not the internet. Hence images are built by buildah, on
# this machine's network, and the two that would be pulled are made of Debian 12 packages: the STAND-INS below.
# CMD gets DOCKER_HOST, DOCKER_CONFIG and DOCKERD_PID (published ports: nsenter -t "$DOCKERD_PID" -n …). The exit code
# is CMD's, or 125 when the engine or an image could not be made. Containers, daemon and data are gone at the end.
set -euo pipefail

say() { printf 'engine: %s\n' "$*" >&2; }
die() { say "$@"; exit 125; }
(($# >= 2)) || die "usage: engine.sh IMAGE CMD [ARGS…]"
ROOT=$(cd "$(dirname "$0")/../.." && pwd)
APP_IMAGE=$1
shift
debian=$(. /etc/os-release 2>/dev/null && echo "${ID-}-${VERSION_ID-}" || true)
[[ $EUID == 0 && $debian == debian-12 ]] || die "a throw-away engine needs Debian 12 and root"

# STAND-INS: the official names, with Debian's Python 3.11 and Redis 7.0 inside.
PYTHON=docker.io/library/python:3.12-slim
REDIS=docker.io/library/redis:7.4-alpine
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/agentq-engine
RUN=$CACHE/run.$$ ENGINE=$CACHE/engine MADE=$CACHE/stand-ins.v1 # another number: they are made again
CERTS=/etc/ssl/certs KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg
export DEBIAN_FRONTEND=noninteractive PATH=$PATH:/usr/sbin:/sbin:$ENGINE/usr/bin
((${#RUN} <= 66)) || die "$CACHE is too long for sockets: set a shorter XDG_CACHE_HOME"

daemon='' started=''
discard() { rmdir /sys/fs/cgroup{,/*}/agentq-engine-"$1" 2>/dev/null || true; rm -rf --one-file-system "$CACHE/run.$1"; }
cleanup() {
  local code=$?
  trap '' INT TERM
  set +e
  if [[ -n $daemon ]]; then
    docker ps -aq | xargs -r docker rm -fv
    kill "$daemon"
    for _ in {1..100}; do kill -0 "$daemon" || break; sleep .2; done
    kill -9 "$daemon"
    wait "$daemon"
  fi >/dev/null 2>&1
  discard $$
  [[ -n $started || $code == 0 ]] || code=125
  exit "$code"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

quietly() { "$@" >"$RUN/log" 2>&1 || { tail -n 40 "$RUN/log" >&2; die "failed: $*"; }; }
apt() { apt-get -q -o DPkg::Lock::Timeout=300 -o APT::Sandbox::User=root "$@"; }
apt_fresh() { apt "$@" >/dev/null 2>&1 || { quietly apt update; quietly apt "$@"; }; }
private() { unshare --mount "$@"; } # whatever it mounts is gone when it ends
store() { TMPDIR=$CACHE/tmp private buildah --root "$CACHE/storage" --runroot "$RUN/storage" "$@"; }
build() { # its steps use this machine's network and certificates; the image keeps neither
  store build --isolation chroot --network host --format docker --layers --pull=never -v $CERTS:$CERTS:O "$@"
}
load() { store push -q "$1" "docker-archive:/dev/stdout:$2" | docker load -q >/dev/null; } # IMAGE NAME

unpack_engine() { # MIRROR: dockerd of this release, compose v2 of the next one
  local debs=$RUN/debs deb
  local next=(-o Dir::Etc::SourceList="$debs/list" -o Dir::Etc::SourceParts=/dev/null
    -o Dir::State::Lists="$debs/lists" -o Dir::Cache="$debs")
  say "fetching dockerd, containerd and compose v2"
  mkdir -p "$debs"/{lists,archives}/partial
  cd "$debs"
  apt_fresh download docker.io containerd runc tini
  echo "deb [signed-by=$KEYRING] $1 trixie main" >list
  quietly apt "${next[@]}" update
  quietly apt "${next[@]}" download docker-compose
  for deb in *.deb; do dpkg-deb -x "$deb" root; done
  mv root "$ENGINE"
  cd "$OLDPWD"
}

make_stand_ins() { # MIRROR
  local base=$RUN/base
  local rootfs=$base/rootfs
  say "making the stand-in images (about a minute, once)"
  mkdir "$base"
  quietly private debootstrap --variant=minbase --include=ca-certificates bookworm "$rootfs" "$1"
  rm -rf "$rootfs"/usr/share/{doc,man,info,locale}/* "$rootfs"/var/lib/apt/lists/* "$rootfs"/var/cache/apt/*
  printf 'Dir::Cache::%s "";\n' pkgcache srcpkgcache >"$rootfs/etc/apt/apt.conf.d/slim"
  install /dev/stdin "$rootfs/usr/sbin/policy-rc.d" <<<$'#!/bin/sh\nexit 101' # packages start no service
  tar -C "$rootfs" --exclude='./dev/*' -cf "$base/rootfs.tar" .
  cat >"$base/redis-entrypoint" <<'EOF'
#!/bin/sh
# As in the official image: redis-server is implied and does not run as root.
case ${1-} in -*|*.conf) set -- redis-server "$@" ;; esac
[ "$1" = redis-server ] || exec "$@"
[ "$(id -u)" != 0 ] || { chown -R redis:redis /data && set -- setpriv --reuid redis --regid redis --clear-groups "$@"; }
exec "$@"
EOF
  cat >"$base/Dockerfile" <<EOF
FROM scratch AS base
ADD rootfs.tar /
ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8
FROM base AS python
ENV SSL_CERT_FILE=$CERTS/ca-certificates.crt REQUESTS_CA_BUNDLE=$CERTS/ca-certificates.crt
RUN apt-get update && apt-get install -y --no-install-recommends python3 python3-venv python3-pip && \
  rm -rf /var/lib/apt/lists/* /usr/lib/python3*/EXTERNALLY-MANAGED && ln -s /usr/bin/python3 /usr/local/bin/python
CMD ["python3"]
FROM base AS redis
RUN groupadd -r -g 1000 redis && useradd -r -u 999 -g redis -d /data redis && install -d -o redis -g redis /data && \
  apt-get update && apt-get install -y --no-install-recommends redis-server && rm -rf /var/lib/apt/lists/*
COPY --chmod=755 redis-entrypoint /usr/local/bin/docker-entrypoint.sh
VOLUME /data
WORKDIR /data
ENTRYPOINT ["docker-entrypoint.sh"]
CMD ["redis-server"]
EOF
  quietly build --target python --tag $PYTHON "$base"
  quietly build --target redis --tag $REDIS "$base"
  touch "$MADE"
}

# ── prepare: one process at a time; nothing to do when all is in the cache ──
mkdir -p "$CACHE/tmp"
exec 9>"$CACHE/lock"
flock 9
for left in "$CACHE"/run.*; do # by a run that was killed
  kill -0 "${left##*.}" 2>/dev/null && [[ $left != "$RUN" ]] || discard "${left##*.}"
done
mkdir "$RUN"
echo 'unqualified-search-registries = ["docker.io"]' >"$RUN/registries.conf"
export CONTAINERS_REGISTRIES_CONF=$RUN/registries.conf
if ! type buildah debootstrap iptables ip >/dev/null 2>&1 || [[ ! -e $KEYRING || ! -e $CERTS/ca-certificates.crt ]]; then
  say "installing buildah, debootstrap, iptables and iproute2"
  apt_fresh install -y --no-install-recommends \
    buildah debootstrap iptables iproute2 ca-certificates debian-archive-keyring
fi
if [[ ! -d $ENGINE || ! -e $MADE ]]; then
  mirror=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Identifier: Packages' |
    awk '!uri && /^https?:/ && $2 == "bookworm" {uri = $1} END {print uri}')
  [[ -n $mirror ]] || die "apt has no http(s) source of Debian 12 (bookworm)"
  [[ -d $ENGINE ]] || unpack_engine "$mirror"
  [[ -e $MADE ]] || make_stand_ins "$mirror"
fi
exec 9>&-
say "python and redis are STAND-INS: Debian's Python 3.11 and Redis 7.0 under the official names"
say "building deploy/Dockerfile"
build --ignorefile "$ROOT/.dockerignore" --file "$ROOT/deploy/Dockerfile" --iidfile "$RUN/image" "$ROOT" >&2

# ── start the engine, load the images, run CMD ──
mkdir -p "$RUN/config/cli-plugins"
ln -s "$ENGINE/usr/libexec/docker/cli-plugins/docker-compose" "$RUN/config/cli-plugins/"
echo '{}' | tee "$RUN/config/config.json" >"$RUN/daemon.json"
export DOCKER_HOST=unix://$RUN/docker.sock DOCKER_CONFIG=$RUN/config
# setsid: Ctrl-C reaches CMD but not the daemon; its own /run: it meets no service of this machine.
PATH=$ENGINE/usr/bin:$ENGINE/usr/sbin:$PATH setsid setpriv --pdeathsig TERM unshare --net --mount \
  sh -c 'mount -t tmpfs run /run && ip link set lo up && exec dockerd "$@"' sh -H "$DOCKER_HOST" \
  --config-file "$RUN/daemon.json" --data-root "$RUN/data" --exec-root "$RUN/exec" -p "$RUN/docker.pid" \
  --exec-opt native.cgroupdriver=cgroupfs --cgroup-parent "/agentq-engine-$$" \
  --default-ulimit nofile=1024:1024 --default-ulimit nproc=4096:4096 >"$RUN/dockerd.log" 2>&1 &
daemon=$!
export DOCKERD_PID=$daemon
ready() { docker info >/dev/null 2>&1; }
for _ in {1..150}; do ready && break; kill -0 "$daemon" 2>/dev/null || break; sleep .2; done
ready || { tail -n 30 "$RUN/dockerd.log" >&2; die "dockerd did not start"; }
load $PYTHON $PYTHON
load $REDIS $REDIS
load "$(<"$RUN/image")" "$APP_IMAGE"
started=yes
"$@"
