-- SPDX-License-Identifier: Apache-2.0
--
-- Runs `millrace job check` at every sbatch, and prints what would go wrong with the job. It never stands in the way:
-- where millrace is missing, takes longer than `seconds`, or anything here fails, the job is submitted all the same.
--
-- Put this file beside slurm.conf where people submit, under this name, and add to slurm.conf:
--     CliFilterPlugins=lua
-- A user leaves the check out for one job: MILLRACE_CLI_FILTER=off sbatch ...

local settings = {
  program = "millrace", -- found on the user's PATH, or an absolute path
  verb = "check",       -- "check" asks Slurm and the file systems, too; "lint" reads the script alone
  seconds = 10,         -- no sbatch waits longer
  refuse = false,       -- true: sbatch submits nothing that would fail; false: it prints why, and submits
}

local function say(text)
  io.stderr:write("sbatch: millrace: ", text, "\n")
end

local function quoted(word)
  return "'" .. tostring(word):gsub("'", "'\\''") .. "'"
end

local function read_file(path)
  local file = io.open(path, "rb")
  if not file then return "" end
  local text = file:read("*a")
  file:close()
  return text or ""
end

-- The words of a process: { "sbatch", "-N2", "train.sbatch" }.
local function words_of(pid)
  local words = {}
  for word in read_file("/proc/" .. pid .. "/cmdline"):gmatch("(%Z*)%z") do
    words[#words + 1] = word
  end
  return words
end

-- `job check` has looked already, and `job submit` checks before it calls sbatch.
local function comes_from_millrace()
  local parent = read_file("/proc/self/stat"):match("^.*%) %a (%d+)")
  local words = words_of(parent or "")
  if not (words[1] or ""):match("millrace$") then return false end
  for _, word in ipairs(words) do
    if word == "--no-check" then return false end
  end
  return true
end

-- The options of sbatch as they were typed: what stands before the script and its arguments.
local function typed_options(arguments)
  local words, options = words_of("self"), {}
  if not (words[1] or ""):match("sbatch$") then return options end
  for i = 2, #words - arguments do options[#options + 1] = "--sbatch=" .. words[i] end
  return options
end

-- What the check printed, and its exit status. It runs in a process of its own with a limit; its output goes through a
-- file, so that nothing it left behind can hold sbatch.
local function run_check(argv)
  local words = { settings.program, "job", settings.verb }
  if settings.verb == "check" then
    for _, option in ipairs(typed_options(#argv)) do words[#words + 1] = option end
  end
  words[#words + 1] = "--"
  for i, word in ipairs(argv) do
    if i == 1 or settings.verb == "check" then words[#words + 1] = word end
  end
  local line = ""
  for _, word in ipairs(words) do line = line .. " " .. quoted(word) end
  local path = os.tmpname()
  os.execute("{ timeout --kill-after=1 " .. settings.seconds .. line .. "; echo \"status $?\"; } >" .. quoted(path)
    .. " 2>&1 </dev/null")
  local text = read_file(path)
  os.remove(path)
  local before, status = text:match("^(.-)status (%d+)\n$")
  return before or "", tonumber(status)
end

-- Findings, and not what is fine.
local function print_findings(text)
  for line in text:gmatch("[^\n]+") do
    local fine = line:match("^fine: ") or line:match("^not checked: ") or line:match("^%d+ files?: ")
    if not fine then say(line) end
  end
end

local function check(options)
  local argv = options.argv
  -- A script from standard input or --wrap is no file that could be read.
  if options.type ~= "sbatch" or type(argv) ~= "table" or #argv == 0 then return slurm.SUCCESS end
  if options["test-only"] == "set" or os.getenv("MILLRACE_CLI_FILTER") == "off" or comes_from_millrace() then
    return slurm.SUCCESS
  end
  local text, status = run_check(argv)
  if status == 0 or status == 3 then print_findings(text) end
  if status == 124 or status == 137 then
    say("the check took longer than " .. settings.seconds .. " s and was left out")
  elseif status == 3 and settings.refuse then
    say("not submitted, because it would fail; MILLRACE_CLI_FILTER=off submits it all the same")
    return slurm.ERROR
  end
  return slurm.SUCCESS
end

function slurm_cli_setup_defaults()
  return slurm.SUCCESS
end

function slurm_cli_pre_submit(options, offset)
  -- Each part of a heterogeneous job comes here; the script is one.
  if offset ~= nil and offset > 0 then return slurm.SUCCESS end
  local fine, answer = pcall(check, options)
  return fine and answer or slurm.SUCCESS
end

function slurm_cli_post_submit()
  return slurm.SUCCESS
end
