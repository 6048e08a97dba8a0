-- Does one command for a record. KEYS[1] is what all keys of the store begin with; ARGV is the command and what it needs. A
-- change under a fence comes behind `fenced`, the record that guards it, and its term.
--
--   KEYS[1]store        revision: the highest that was given out; deleted_version: the highest version of a deleted record
--   KEYS[1]names        the names, for lists in order
--   KEYS[1]ends         the names of what is leased, by the microsecond at which the lease ends
--   KEYS[1]record:NAME  value, version, revision, written; and of a lease holder, epoch, ends, delete_at_end
--   KEYS[1]changes      the channel on which the name of each record is told that has changed
--
-- Numbers are microseconds and below 2^53, so that Lua's are exact. Those of the caller are compared as texts.

local P, ARGV, guard, term = KEYS[1], ARGV, nil, nil
if ARGV[1] == 'fenced' then
    guard, term, ARGV = ARGV[2], ARGV[3], { unpack(ARGV, 4) }
end
local command, name = ARGV[1], ARGV[2]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local function text(number) return string.format('%.0f', number) end

local function tell(of) redis.call('PUBLISH', P .. 'changes', of) end

-- The number of the next change. It is at least the time.
local function next_revision()
    local last = tonumber(redis.call('HGET', P .. 'store', 'revision') or '0')
    local next = text(math.max(now, last + 1))
    redis.call('HSET', P .. 'store', 'revision', next)
    return next
end

local function deleted_version() return tonumber(redis.call('HGET', P .. 'store', 'deleted_version') or '0') end

local function remove(of, version)
    redis.call('DEL', P .. 'record:' .. of)
    redis.call('ZREM', P .. 'names', of)
    redis.call('ZREM', P .. 'ends', of)
    redis.call('HSET', P .. 'store', 'deleted_version', text(math.max(deleted_version(), tonumber(version))))
end

local function end_lease(of)
    local key, change = P .. 'record:' .. of, next_revision()
    local it = redis.call('HMGET', key, 'version', 'delete_at_end')
    if it[2] == '1' then
        remove(of, it[1])
    else
        redis.call('ZREM', P .. 'ends', of)
        redis.call('HDEL', key, 'holder', 'epoch', 'ends', 'delete_at_end')
        redis.call('HSET', key, 'revision', change)
    end
    tell(of)
end

-- Ends leases whose time is over, the oldest first.
local function end_leases(most)
    for _, of in ipairs(redis.call('ZRANGEBYSCORE', P .. 'ends', '-inf', text(now), 'LIMIT', 0, most)) do
        end_lease(of)
    end
end

-- The record, with no lease that has ended.
local function load(of)
    local found = redis.call('HMGET', P .. 'record:' .. of, 'version', 'revision', 'written', 'holder', 'epoch', 'ends',
        'delete_at_end')
    if not found[1] then
        return {}
    end
    if found[6] and tonumber(found[6]) <= now then
        end_lease(of)
        return load(of)
    end
    return { version = found[1], revision = found[2], written = found[3], holder = found[4], epoch = found[5],
        ends = found[6], delete_at_end = found[7] }
end

local function answer(outcome, it, value)
    return { outcome, it.version or false, it.revision or false, it.written or false, it.holder or false,
        it.epoch or false, it.ends and text(tonumber(it.ends) - now) or false, it.delete_at_end or false, value or false }
end

local function shown(of, it) return answer('done', it, redis.call('HGET', P .. 'record:' .. of, 'value')) end

-- Writes the value of a record that has that version, if it is there; the new version, and the change.
local function write(of, version, value)
    local change, version = next_revision(), text((version or deleted_version()) + 1)
    redis.call('HSET', P .. 'record:' .. of, 'value', value, 'version', version, 'revision', change, 'written',
        text(math.floor(now / 1000)))
    redis.call('ZADD', P .. 'names', 0, of)
    tell(of)
    return version, change
end

-- Whether one decimal number is above another one. Epochs are too large for Lua's numbers.
local function is_above(one, other) return #one > #other or (#one == #other and one > other) end

-- The highest epoch that a guard has seen, if it is there. A value that is none has seen all.
local function seen_by(of)
    local value = load(of).version and redis.call('HGET', P .. 'record:' .. of, 'value')
    local all = '18446744073709551615'
    if value and (not (value == '0' or value:match('^[1-9]%d*$')) or is_above(value, all)) then
        return all
    end
    return value
end

local function set_end(of, ends)
    redis.call('HSET', P .. 'record:' .. of, 'ends', text(ends))
    redis.call('ZADD', P .. 'ends', text(ends), of)
end

if command == 'list' or command == 'get' then
    -- Nothing, which a replica refuses all the same: what a server that was demoted has may be of the past.
    redis.call('DEL', P .. 'nothing')
end

if command == 'list' then
    local first, last, limit, bytes_max = ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
    end_leases(-1)
    local found, page, bytes = redis.call('ZRANGEBYLEX', P .. 'names', first, last, 'LIMIT', 0, limit + 1), {}, 0
    for _, of in ipairs(found) do
        if #page == limit or bytes >= bytes_max then
            break
        end
        local row = shown(of, load(of))
        bytes = bytes + #row[9]
        row[10] = of
        page[#page + 1] = row
    end
    return { #page < #found and 1 or 0, page }
end

end_leases(64)
local it = load(name)

if command == 'get' then
    return it.version and shown(name, it) or false
end

-- Under a fence a change passes if the guard has seen no later term, and raises it, whoever has its lease.
local rises = false
if guard then
    local seen = seen_by(guard)
    if seen and is_above(seen, term) then
        return answer('fenced ' .. seen, {})
    end
    rises = seen ~= term
end

-- The answer to a change that was made.
local function done(row)
    if rises then
        write(guard, load(guard).version, term)
    end
    return row
end

if command == 'lease' then
    local holder, span, delete_at_end = ARGV[3], tonumber(ARGV[4]), ARGV[5]
    if it.holder and it.holder ~= holder then
        return answer('held', it)
    end
    if not it.version then
        redis.call('HSET', P .. 'record:' .. name, 'value', '', 'version', text(deleted_version() + 1), 'written',
            text(math.floor(now / 1000)))
        redis.call('ZADD', P .. 'names', 0, name)
    end
    if not it.holder then
        local change = next_revision()
        redis.call('HSET', P .. 'record:' .. name, 'holder', holder, 'epoch', change, 'revision', change)
    end
    redis.call('HSET', P .. 'record:' .. name, 'delete_at_end', delete_at_end)
    set_end(name, now + span)
    if not it.holder or now + span < tonumber(it.ends) then
        -- Who watches waits for the end of the lease at most.
        tell(name)
    end
    return done(shown(name, load(name)))
end

if command == 'extend' then
    local epoch, span = ARGV[3], tonumber(ARGV[4])
    if it.epoch ~= epoch then
        return answer('lost', {})
    end
    set_end(name, now + span)
    if now + span < tonumber(it.ends) then
        tell(name)
    end
    return done(answer('done', {}))
end

if command == 'release' then
    if it.epoch ~= ARGV[3] then
        return answer('lost', {})
    end
    end_lease(name)
    return done(answer('done', {}))
end

-- A write or a deletion. The lease is looked at first: who has lost it must learn that.
local replaces, epoch, value = ARGV[3], ARGV[4], ARGV[5]
if epoch ~= '' and it.epoch ~= epoch then
    return answer('lost', it)
elseif epoch == '' and it.holder then
    return answer('held', it)
elseif (it.version or '') ~= replaces then
    return answer('conflict', it)
end
if command == 'delete' then
    it.revision = next_revision()
    remove(name, it.version)
    tell(name)
else
    it.version, it.revision = write(name, it.version, value)
end
return done(answer('done', it))
