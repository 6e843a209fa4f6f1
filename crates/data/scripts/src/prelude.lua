-- Wraps what could catch the end of a run, or work longer than its instructions say. The arguments are
-- functions of the interpreter's owner; what this returns, it keeps.
local host = ...
local caught, charge, explain = host.caught, host.charge, host.explain
local match, bad_argument, readonly = host.match, host.bad_argument, host.readonly
local undefined, source_of = host.undefined, host.source_of

local G = {}
local native = getfenv(0)
local pcall, xpcall, setfenv, rawset, rawget = pcall, xpcall, setfenv, rawset, rawget
local type, select, next, setmetatable, error = type, select, next, setmetatable, error
local concat, sort, floor = table.concat, table.sort, math.floor
local loadstring, tostring = loadstring, tostring
local resume = coroutine.resume
local sub = string.sub

-- An error that is caught as pcall does in Redis: the text of a command's error.
local function text_of(err)
  err = caught(err)
  if type(err) == 'table' then
    local text = err.err
    if type(text) == 'string' or type(text) == 'number' then return tostring(text) end
  end
  return err
end

local function after_pcall(ok, ...)
  if ok then return true, ... end
  return false, text_of((...))
end

local function after(ok, ...)
  if ok then return true, ... end
  return false, caught((...))
end

function G.pcall(...)
  return after_pcall(pcall(...))
end

function G.xpcall(f, handler)
  return after(xpcall(f, function(err) return handler(caught(err)) end))
end

local libraries = { string = string, table = table, math = math, coroutine = coroutine }
for name, library in next, libraries do
  local copy = {}
  for key, value in next, library do copy[key] = value end
  libraries[name] = copy
end

-- A coroutine is looked at only once it has run for a while, so that it begins counts, too.
local create, wrap = coroutine.create, coroutine.wrap
local COROUTINE = 300
function libraries.coroutine.create(f)
  charge(COROUTINE)
  return create(f)
end

function libraries.coroutine.wrap(f)
  charge(COROUTINE)
  return wrap(f)
end

function libraries.coroutine.resume(...)
  return after(resume(...))
end

-- The order of a comparison of n elements: n times its logarithm, and as much as that again.
function libraries.table.sort(t, less)
  if type(t) ~= 'table' then bad_argument(1, 'sort', 'table', type(t)) end
  if less ~= nil and type(less) ~= 'function' then bad_argument(2, 'sort', 'function', type(less)) end
  local n, log = #t, 1
  local rest = n
  while rest > 1 do rest, log = floor(rest / 2), log + 1 end
  charge(n * log * 2)
  return sort(t, less)
end

-- What a script sees as its global variables: an empty table, in which `variables` and `G` show.
local variables, env = {}, {}
local function compile(text, name)
  local f, err = loadstring(source_of(text), name)
  if not f then return nil, err end
  return setfenv(f, env)
end

function G.loadstring(...)
  local text, name = ...
  if type(text) == 'number' then text = tostring(text) end
  if type(text) ~= 'string' then
    bad_argument(1, 'loadstring', 'string', select('#', ...) == 0 and 'no value' or type(text))
  end
  return compile(text, name or text)
end

function G.load(reader, name)
  if type(reader) ~= 'function' then bad_argument(1, 'load', 'function', type(reader)) end
  local pieces = {}
  while true do
    local piece = reader()
    if piece == nil or piece == '' then break end
    if type(piece) ~= 'string' then return nil, 'reader function must return a string' end
    pieces[#pieces + 1] = piece
  end
  return compile(concat(pieces), name or '=(load)')
end

-- A substitution by a function or a table, so that what the function raises is Lua's.
local replace_text = host.gsub
local function replace_by(text, pattern, by, limit)
  local pieces, copied, count, at = {}, 1, 0, 1
  local is_function = type(by) == 'function'
  local anchored = sub(pattern, 1, 1) == '^'
  local function replace(from, to, capture, ...)
    if not from then return nil end
    count = count + 1
    local value
    if is_function then value = by(capture, ...) else value = by[capture] end
    if not value then
      value = sub(text, from, to)
    elseif type(value) ~= 'string' and type(value) ~= 'number' then
      error('invalid replacement value (a ' .. type(value) .. ')', 3)
    end
    pieces[#pieces + 1] = sub(text, copied, from - 1)
    pieces[#pieces + 1] = value
    copied = to + 1
    -- An empty match is followed by the next byte.
    return to >= from and to + 1 or from + 1
  end
  while count < limit do
    at = replace(match(text, pattern, at))
    if not at or anchored then break end
  end
  pieces[#pieces + 1] = sub(text, copied)
  return concat(pieces), count
end

function libraries.string.gsub(text, pattern, by, ...)
  local kind = type(by)
  if kind ~= 'function' and kind ~= 'table' then return replace_text(text, pattern, by, ...) end
  if type(text) == 'number' then text = tostring(text) end
  if type(pattern) == 'number' then pattern = tostring(pattern) end
  if type(text) ~= 'string' then bad_argument(1, 'gsub', 'string', type(text)) end
  if type(pattern) ~= 'string' then bad_argument(2, 'gsub', 'string', type(pattern)) end
  local limit = ...
  return replace_by(text, pattern, by, limit or #text + 1)
end

for name, f in next, host.string do libraries.string[name] = f end
for name, f in next, host.math do libraries.math[name] = f end
for name, library in next, host.libraries do libraries[name] = library end
libraries.string.gfind = libraries.string.gmatch

for _, name in next, { '_VERSION', 'assert', 'error', 'ipairs', 'next', 'rawequal', 'rawget', 'select',
                       'tonumber', 'tostring', 'type', 'unpack' } do
  G[name] = native[name]
end
for name, f in next, host.globals do G[name] = f end

-- Libraries show through tables that are empty and stay so.
local shown = {}
for name, library in next, libraries do
  G[name] = setmetatable({}, { __index = library, __newindex = readonly, __metatable = false })
  shown[G[name]] = library
end
setmetatable(G, { __index = undefined, __newindex = readonly, __metatable = false })

-- Strings are indexed by the library that scripts see; their metatable is shown by another that is empty.
local strings = native.getmetatable('')
strings.__index = G.string
strings.__metatable =
  setmetatable({}, { __index = { __index = G.string }, __newindex = readonly, __metatable = false })
shown[strings.__metatable] = { __index = G.string }

setmetatable(variables, { __index = G })
variables._G = env
local metatable = setmetatable({}, { __newindex = readonly, __metatable = false })
setmetatable(env, { __index = variables, __newindex = readonly, __metatable = metatable })
shown[metatable] = {}

-- `redis.call` is there for one run: it borrows the keys. It raises no errors of commands if the first
-- argument says so, which is a value that no script has.
local redis, catching = libraries.redis, host.catching
function redis.pcall(...)
  return redis.call(catching, ...)
end

local function run(f, keys, argv, command)
  variables.KEYS, variables.ARGV, redis.call = keys, argv, command
  return xpcall(f, explain)
end

-- A library is loaded with another `redis`: it can register functions and run no commands.
local loading = {}
for key, value in next, redis do
  if key ~= 'pcall' then loading[key] = value end
end
loading.register_function = host.register_function
setmetatable(loading, { __index = undefined })
local loading_front =
  setmetatable({}, { __index = loading, __newindex = readonly, __metatable = false })
shown[loading_front] = loading

local function load_library(f)
  variables.KEYS, variables.ARGV, variables.redis = nil, nil, loading_front
  local ok, err = xpcall(f, explain)
  variables.redis = nil
  return ok, err
end

local function call(f, keys, argv, command)
  redis.call = command
  return xpcall(function() return f(keys, argv) end, explain)
end

-- What a table shows that is empty in itself.
local function inside(t)
  local library = shown[t]
  if library then return library end
  if t == env then
    local all = {}
    for key, value in next, G do all[key] = value end
    -- In an order that doesn't depend on the runs before.
    all.KEYS, all.ARGV, all._G = variables.KEYS, variables.ARGV, env
    return all
  end
end

-- Whether a script may not change the table by other ways than an assignment either.
local function is_protected(t)
  return shown[t] ~= nil or t == env
end

-- The tables that stay from run to run, and are empty unless a script has found a way into one.
local empty = { env }
for front in next, shown do empty[#empty + 1] = front end

return run, inside, is_protected, load_library, call, env, empty
