import assert from 'node:assert/strict'
import { test } from 'node:test'
import { agent, latch, rpc, useAgent } from './harness.mjs'

useAgent()
const encode = (s) => new TextEncoder().encode(s)

/** Opens a terminal and waits for text in its output. */
async function terminal(opts) {
  const t = { out: '', waiters: [] }
  t.handle = await agent.sandbox.pty.create({
    cols: 80, rows: 24, timeoutMs: 20_000, ...opts,
    onData: (d) => {
      t.out += Buffer.from(d).toString()
      t.waiters = t.waiters.filter(([text, l]) => t.out.includes(text) ? l.open() : true)
    },
  })
  t.send = (s) => agent.sandbox.pty.sendInput(t.handle.pid, encode(s))
  t.until = (text) => {
    const l = latch()
    if (t.out.includes(text)) return
    t.waiters.push([text, l])
    return l.promise
  }
  return t
}

test('a terminal has the size asked for, and the exit code comes back', async () => {
  const t = await terminal({ cols: 101, rows: 33 })
  await t.send('stty size; tty; exit 5\n')
  await assert.rejects(t.handle.wait(), (e) => e.exitCode === 5)
  assert.match(t.out, /33 101/)
  assert.match(t.out, /\/dev\/pts\/\d+/)
})

test('resize is seen', async () => {
  const t = await terminal()
  await agent.sandbox.pty.resize(t.handle.pid, { cols: 120, rows: 40 })
  await t.send('stty size; exit\n')
  await t.handle.wait()
  assert.match(t.out, /40 120/)
})

test('TERM, cwd, envs', async () => {
  const t = await terminal({ cwd: '/tmp', envs: { MARK: 'here' } })
  await t.send('echo [$TERM:$PWD:$MARK]; exit\n')
  await t.handle.wait()
  assert.match(t.out, /\[xterm-256color:\/tmp:here\]/)
})

test('Ctrl-C interrupts the foreground process', async () => {
  const t = await terminal()
  // What prints is what sleeps, so that it has the terminal when the interrupt comes.
  await t.send(`sh -c "echo star''ted; exec sleep 1000"\n`)
  await t.until('started')
  await t.send('\x03')
  await t.send('exit 3\n')
  await assert.rejects(t.handle.wait(), (e) => e.exitCode === 3 || e.exitCode === 130)
})

test('kill ends a terminal', async () => {
  const t = await terminal()
  assert.equal(await agent.sandbox.pty.kill(t.handle.pid), true)
  await assert.rejects(t.handle.wait(), (e) => e.exitCode !== 0)
})

test('the terminal belongs to its user', async () => {
  const t = await terminal()
  await t.send('[ -O $(tty) ] && echo own"ed"; exit\n')
  await t.handle.wait()
  assert.match(t.out, /owned/)
})

test('a terminal takes pty input only, and its stdin can’t be closed', async () => {
  const t = await terminal()
  const process = { pid: t.handle.pid }
  const stdin = await rpc('process.Process/SendInput', { process, input: { stdin: 'eA==' } })
  assert.deepEqual([stdin.status, stdin.body.code], [400, 'failed_precondition'])
  const close = await rpc('process.Process/CloseStdin', { process })
  assert.deepEqual([close.status, close.body.code], [400, 'failed_precondition'])
  await agent.sandbox.pty.kill(t.handle.pid)
})

test('unicode survives', async () => {
  const t = await terminal()
  await t.send('stty -echo; printf "<%s>" "ü€😀"; exit\n')
  await t.handle.wait()
  assert.ok(t.out.includes('<ü€😀>'))
})
