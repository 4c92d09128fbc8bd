-- Which of these keys have no end although they need one: the run or batch to which they belong is gone, or they belong to
-- none. With repair they get an end.
--
-- KEYS  1 routing key
-- ARGV  1 ms after which such a key goes, or '' to look only   2 and on, for each: its name, and the key without which it
--         needs an end: '' for none, '=' for the run that it names
-- REPLY {"OK", name, …}
--       | {"SCHEMA", version} (the state is newer than this script)
-- FLAGS allow-oom
local newer = too_new()
if newer then return newer end
local reply = {'OK'}
for i = 2, #ARGV, 2 do
  local key, owner = P .. ARGV[i], ARGV[i + 1]
  if redis.call('PTTL', key) == -1 then
    if owner == '=' then owner = 'run:' .. (string.match(redis.call('GET', key), '%S+$') or '') end
    if owner == '' or redis.call('EXISTS', P .. owner) == 0 then
      reply[#reply + 1] = ARGV[i]
      if ARGV[1] ~= '' then redis.call('PEXPIRE', key, ARGV[1]) end
    end
  end
end
return reply
