import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { test } from 'node:test'
import { agent, agentMemory, frames, latch, rpc, sdk, useAgent } from './harness.mjs'

useAgent()
const run = (...args) => agent.sandbox.commands.run(...args)
const sha = (data) => createHash('sha256').update(data).digest('hex')

test('stdout, stderr and exit code', async () => {
  const r = await run('echo out; echo err >&2')
  assert.deepEqual([r.stdout, r.stderr, r.exitCode], ['out\n', 'err\n', 0])
})

test('a failing command throws with its exit code and output', async () => {
  await assert.rejects(run('echo before; exit 42'), (e) =>
    e instanceof sdk.CommandExitError && e.exitCode === 42 && e.stdout === 'before\n')
})

test('exit codes 1, 126, 127 and 255 are exact', async () => {
  for (const [cmd, code] of [['false', 1], ['/etc/passwd', 126], ['nonexistent-command', 127], ['exit 255', 255]]) {
    await assert.rejects(run(cmd), (e) => e.exitCode === code, cmd)
  }
})

test('death by a signal inside the shell is 128 + signal', async () => {
  await assert.rejects(run("sh -c 'kill -TERM $$'; exit $?"), (e) => e.exitCode === 143)
})

test('output is streamed as it comes', async () => {
  const first = latch()
  const seen = []
  const h = await run('echo one; read x; echo two >&2', {
    background: true, stdin: true,
    onStdout: (d) => { seen.push(['out', d]); first.open() },
    onStderr: (d) => { seen.push(['err', d]) },
  })
  await first.promise
  assert.deepEqual(seen, [['out', 'one\n']])
  await agent.sandbox.commands.sendStdin(h.pid, 'go\n')
  await h.wait()
  assert.deepEqual(seen, [['out', 'one\n'], ['err', 'two\n']])
})

test('cwd and envs', async () => {
  const r = await run('pwd; echo $A-$B', { cwd: '/tmp', envs: { A: 'a b', B: 'ü"$' } })
  assert.equal(r.stdout, '/tmp\na b-ü"$\n')
})

test('a missing cwd is an invalid argument', async () => {
  await assert.rejects(run('true', { cwd: '/no/such/dir' }), (e) =>
    e instanceof sdk.InvalidArgumentError && e.message.includes("cwd '/no/such/dir' does not exist"))
})

test('the login variables are the user’s', async () => {
  const r = await run('echo $HOME $USER $LOGNAME $E2B_SANDBOX', { user: 'root' })
  assert.equal(r.stdout, '/root root root true\n')
})

test('a user is chosen per call', async () => {
  assert.equal((await run('id -un', { user: 'root' })).stdout, 'root\n')
  assert.equal((await run('id -un', { user: 'daemon', cwd: '/' })).stdout, 'daemon\n')
})

test('an unknown user is unauthenticated', async () => {
  await assert.rejects(run('true', { user: 'nobody-by-this-name' }), (e) =>
    e instanceof sdk.AuthenticationError && e.message.includes("invalid username: 'nobody-by-this-name'"))
})

test('a command does not see the agent’s files', async () => {
  const r = await run('ls /proc/self/fd | wc -l')
  assert.equal(r.stdout.trim(), '4') // 0, 1, 2 and ls's own
})

test('stdin is closed unless asked for (C09)', async () => {
  assert.equal((await run('cat; echo end')).stdout, 'end\n')
})

test('stdin echoes, in several pieces, and ends when closed (C09)', async () => {
  const h = await run('cat', { background: true, stdin: true })
  for (const piece of ['one ', 'zwei ü ', '三\n']) await agent.sandbox.commands.sendStdin(h.pid, piece)
  await agent.sandbox.commands.closeStdin(h.pid)
  assert.equal((await h.wait()).stdout, 'one zwei ü 三\n')
})

test('absent stdin flag means open', async () => {
  let pid, out = ''
  for await (const [, msg] of frames('process.Process/Start', { process: { cmd: 'cat' } })) {
    if (msg.event?.start) {
      pid = msg.event.start.pid
      await rpc('process.Process/SendInput', { process: { pid }, input: { stdin: Buffer.from('x').toString('base64') } })
      await rpc('process.Process/CloseStdin', { process: { pid } })
    }
    if (msg.event?.data) out += Buffer.from(msg.event.data.stdout, 'base64')
  }
  assert.equal(out, 'x')
})

test('stdin that was not asked for is a failed precondition', async () => {
  const h = await run('sleep 30', { background: true, stdin: false })
  const r = await rpc('process.Process/SendInput', { process: { pid: h.pid }, input: { stdin: 'eA==' } })
  assert.deepEqual([r.status, r.body.code], [400, 'failed_precondition'])
  await h.kill()
})

test('a megabyte of three- and four-byte UTF-8 is exact (C08)', async () => {
  const unit = '€😀中𝄞'
  const n = Math.ceil((1 << 20) / Buffer.byteLength(unit))
  const r = await run(`python3 -c 'import sys; sys.stdout.write("${unit}"*${n})'`)
  assert.equal(sha(r.stdout), sha(unit.repeat(n)))
})

test('all byte values are exact on the wire (C08)', async () => {
  const parts = []
  const cmd = { cmd: 'python3', args: ['-c', 'import sys; sys.stdout.buffer.write(bytes(range(256))*1024)'] }
  for await (const [, msg] of frames('process.Process/Start', { process: cmd, stdin: false })) {
    if (msg.event?.data) parts.push(Buffer.from(msg.event.data.stdout, 'base64'))
    if (msg.event?.data) assert.ok(parts.at(-1).length <= 32768)
  }
  const want = Buffer.concat(Array(1024).fill(Buffer.from(Array.from({ length: 256 }, (_, i) => i))))
  assert.equal(sha(Buffer.concat(parts)), sha(want))
})

test('8 MiB of output arrive complete', async () => {
  const r = await run('head -c 8388608 /dev/zero | tr "\\0" x')
  assert.equal(r.stdout.length, 8388608)
})

test('events come in order: start, data, end', async () => {
  const kinds = []
  for await (const [flags, msg] of frames('process.Process/Start', { process: { cmd: 'sh', args: ['-c', 'echo x; exit 3'] } })) {
    kinds.push(flags === 2 ? 'eos' : Object.keys(msg.event)[0])
    if (msg.event?.end) {
      assert.deepEqual(msg.event.end, { exitCode: 3, exited: true, status: 'exit status 3', error: 'exit status 3' })
    }
  }
  assert.deepEqual(kinds, ['start', 'data', 'end', 'eos'])
})

test('the exit code is never lost (C10)', async () => {
  for (let i = 0; i < 200; i += 10) {
    const codes = await Promise.all(Array.from({ length: 10 }, (_, j) =>
      run(`exec 1>&- 2>&-; exit ${(i + j) % 255 + 1}`).then(() => 0, (e) => e.exitCode)))
    assert.deepEqual(codes, Array.from({ length: 10 }, (_, j) => (i + j) % 255 + 1))
  }
})

test('a missing program is an error, not a hang', async () => {
  const seen = []
  for await (const [, msg] of frames('process.Process/Start', { process: { cmd: 'no-such-program' } })) seen.push(msg)
  assert.equal(seen.length, 1)
  assert.equal(seen[0].error.code, 'invalid_argument')
  assert.match(seen[0].error.message, /executable file not found/)
})

test('a timeout kills and is reported as one', async () => {
  await assert.rejects(run('sleep 60', { timeoutMs: 300 }), sdk.TimeoutError)
})

test('the deadline comes from the server too', async () => {
  const seen = []
  for await (const [, msg] of frames('process.Process/Start', { process: { cmd: 'sleep', args: ['60'] } },
    { headers: { 'Connect-Timeout-Ms': '300' } })) seen.push(msg)
  assert.equal(seen.at(-1).error.code, 'deadline_exceeded')
  assert.ok(seen[0].event.start.pid > 0)
})

// Sleeps of a length that nobody else asks for, to count them by.
const marks = [100_000 + process.pid, 10_000_000 + process.pid]
const descendants = async (mark) =>
  (await run(`pgrep -fx 'sleep ${mark}' | wc -l`)).stdout.trim()

test('kill takes every descendant (C06)', async () => {
  const h = await run(`sh -c 'sleep ${marks[0]} & setsid sleep ${marks[0]} & sleep ${marks[0]}'`, { background: true, timeoutMs: 0 })
  while (await descendants(marks[0]) !== '3');
  assert.equal(await h.kill(), true)
  await assert.rejects(h.wait(), (e) => e.exitCode !== 0)
  while (await descendants(marks[0]) !== '0');
})

test('a command timeout takes every descendant (C06)', async () => {
  await assert.rejects(run(`sh -c 'sleep ${marks[1]} & setsid sleep ${marks[1]} & sleep ${marks[1]}'`, { timeoutMs: 500 }), sdk.TimeoutError)
  while (await descendants(marks[1]) !== '0');
})

test('the port of a killed server is free', async () => {
  const up = latch()
  const server = 'python3 -uc \'import socket; s=socket.create_server(("127.0.0.1",49871)); print("up"); s.accept()\''
  const h = await run(server, { background: true, onStdout: up.open })
  await up.promise
  await h.kill()
  await assert.rejects(h.wait())
  const again = latch()
  const h2 = await run(server, { background: true, onStdout: again.open })
  await again.promise
  await h2.kill()
})

test('kill of an unknown or ended process is false', async () => {
  assert.equal(await agent.sandbox.commands.kill(4194000), false)
  const h = await run('true', { background: true })
  await h.wait()
  assert.equal(await h.kill(), false)
})

test('list shows what runs', async () => {
  const h = await run('sleep 77', { background: true, envs: { X: 'y' } })
  const p = (await agent.sandbox.commands.list()).find((p) => p.pid === h.pid)
  assert.deepEqual([p.cmd, p.args, p.envs], ['/bin/bash', ['-l', '-c', 'sleep 77'], { X: 'y' }])
  await h.kill()
  await assert.rejects(h.wait())
  assert.equal((await agent.sandbox.commands.list()).some((p) => p.pid === h.pid), false)
})

test('connect follows a running process', async () => {
  const h = await run('read x; echo got $x; exit 7', { background: true, stdin: true })
  const other = await agent.sandbox.commands.connect(h.pid)
  await agent.sandbox.commands.sendStdin(h.pid, 'it\n')
  for (const handle of [h, other]) {
    await assert.rejects(handle.wait(), (e) => e.exitCode === 7 && e.stdout === 'got it\n')
  }
})

test('connect after the end still tells the exit code', async () => {
  const h = await run('exit 9', { background: true })
  await assert.rejects(h.wait(), (e) => e.exitCode === 9)
  const late = await agent.sandbox.commands.connect(h.pid)
  await assert.rejects(late.wait(), (e) => e.exitCode === 9)
})

test('connect to an unknown pid is not found', async () => {
  await assert.rejects(agent.sandbox.commands.connect(4194001), sdk.NotFoundError)
})

test('disconnect leaves the process alone', async () => {
  const h = await run('sleep 55', { background: true })
  await h.disconnect()
  assert.ok((await agent.sandbox.commands.list()).some((p) => p.pid === h.pid))
  assert.equal(await agent.sandbox.commands.kill(h.pid), true)
})

test('a process that nobody reads neither blocks nor grows the agent (C07)', { timeout: 60_000 }, async () => {
  const stop = new AbortController()
  let pid
  await assert.rejects(async () => {
    for await (const [, msg] of frames('process.Process/Start', { process: { cmd: 'yes' } }, { signal: stop.signal })) {
      pid ??= msg.event.start.pid
      stop.abort()
    }
  })
  const written = async () => Number((await run(`sed -n 's/^wchar: //p' /proc/${pid}/io`, { user: 'root' })).stdout)
  const before = await agentMemory()
  const at = await written()
  while (await written() < at + (256 << 20));
  const after = await agentMemory()
  if (before) assert.ok(after - before < 16 << 20, `memory grew from ${before} to ${after}`)
  assert.equal(await agent.sandbox.commands.kill(pid), true)
})

test('tags name processes', async () => {
  let tagged
  for await (const [, msg] of frames('process.Process/Start',
    { process: { cmd: 'sh', args: ['-c', 'read x'] }, tag: 'my-tag' })) {
    if (!msg.event?.start) continue
    tagged = (await rpc('process.Process/List', {})).body.processes.find((p) => p.tag === 'my-tag')
    const killed = await rpc('process.Process/SendSignal', { process: { tag: 'my-tag' }, signal: 'SIGNAL_SIGKILL' })
    assert.equal(killed.status, 200)
  }
  assert.equal(tagged.config.cmd, 'sh')
})

test('SIGTERM reaches the process', async () => {
  const ready = latch()
  const h = await run('trap "echo bye; exit 4" TERM; echo ready; while :; do sleep 0.01; done',
    { background: true, onStdout: ready.open })
  await ready.promise
  const r = await rpc('process.Process/SendSignal', { process: { pid: h.pid }, signal: 'SIGNAL_SIGTERM' })
  assert.equal(r.status, 200)
  await assert.rejects(h.wait(), (e) => e.exitCode === 4 && e.stdout === 'ready\nbye\n')
})

test('other signals are unimplemented', async () => {
  const h = await run('sleep 44', { background: true })
  const r = await rpc('process.Process/SendSignal', { process: { pid: h.pid }, signal: 'SIGNAL_UNSPECIFIED' })
  assert.deepEqual([r.status, r.body.code], [501, 'unimplemented'])
  await h.kill()
})

test('fifty at once', async () => {
  const results = await Promise.all(Array.from({ length: 50 }, (_, i) => run(`echo ${i}`)))
  assert.deepEqual(results.map((r) => r.stdout), Array.from({ length: 50 }, (_, i) => `${i}\n`))
})

test('keepalives come at the interval asked for', async () => {
  const kinds = []
  const stop = new AbortController()
  await assert.rejects(async () => {
    for await (const [, msg] of frames('process.Process/Start', { process: { cmd: 'sleep', args: ['20'] } },
      { headers: { 'Keepalive-Ping-Interval': '1' }, signal: stop.signal })) {
      kinds.push(Object.keys(msg.event)[0])
      if (kinds.length === 3) stop.abort()
    }
  })
  assert.deepEqual(kinds, ['start', 'keepalive', 'keepalive'])
})
