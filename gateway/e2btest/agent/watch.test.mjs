import assert from 'node:assert/strict'
import { test } from 'node:test'
import { agent, latch, rpc, sdk, useAgent } from './harness.mjs'

useAgent()
const files = () => agent.sandbox.files

/** Watches a new directory and waits until given events have been seen. */
async function watch(name, opts = {}) {
  const dir = `${agent.dir}/${name}`
  await files().makeDir(dir)
  const w = { dir, events: [], waiters: [] }
  w.handle = await files().watchDir(dir, (e) => {
    w.events.push(`${e.type} ${e.name}`)
    w.waiters = w.waiters.filter((f) => !f())
  }, { timeoutMs: 30_000, ...opts })
  w.until = (...wanted) => {
    const l = latch()
    const check = () => wanted.every((x) => w.events.includes(x)) && (l.open(), true)
    if (!check()) w.waiters.push(check)
    return l.promise
  }
  return w
}

test('create, write, chmod, rename, remove', async () => {
  const w = await watch('plain')
  await files().write(`${w.dir}/f`, 'x')
  await w.until('create f', 'write f')
  await agent.sandbox.commands.run(`chmod 600 f; mv f g; rm g`, { cwd: w.dir })
  await w.until('chmod f', 'rename f', 'create g', 'remove g')
  await w.handle.stop()
})

test('a plain watch does not see below', async () => {
  const w = await watch('shallow')
  await agent.sandbox.commands.run('mkdir sub; touch sub/f; touch top', { cwd: w.dir })
  await w.until('create sub', 'create top')
  assert.ok(!w.events.some((e) => e.includes('sub/f')))
  await w.handle.stop()
})

test('a recursive watch sees new directories and what is in them (C12)', async () => {
  const w = await watch('deep', { recursive: true })
  await agent.sandbox.commands.run('mkdir -p a/b/c/d && touch a/b/c/d/f', { cwd: w.dir })
  await w.until('create a', 'create a/b', 'create a/b/c', 'create a/b/c/d', 'create a/b/c/d/f')
  await files().write(`${w.dir}/a/b/c/d/f`, 'later')
  await w.until('write a/b/c/d/f')
  for (const e of ['create a', 'create a/b', 'create a/b/c/d/f']) {
    assert.equal(w.events.filter((x) => x === e).length, 1, `${e} in ${w.events}`)
  }
  await w.handle.stop()
})

test('a directory that is removed and made again is watched again (C12)', async () => {
  const w = await watch('again', { recursive: true })
  await agent.sandbox.commands.run('mkdir d', { cwd: w.dir })
  await w.until('create d')
  for (let i = 0; i < 20; i++) {
    await agent.sandbox.commands.run(`rm -r d; mkdir d; touch d/f${i}`, { cwd: w.dir })
    await w.until(`create d/f${i}`)
  }
  await w.handle.stop()
})

test('a symlink loop does not spin (C12)', async () => {
  const w = await watch('loop', { recursive: true })
  await agent.sandbox.commands.run('mkdir d; ln -s .. d/up; ln -s d d2; touch d/end', { cwd: w.dir })
  await w.until('create d', 'create d/up', 'create d2', 'create d/end')
  assert.ok(w.events.every((e) => !e.includes('up/')))
  await w.handle.stop()
})

test('missing directories and files can’t be watched', async () => {
  await assert.rejects(files().watchDir(`${agent.dir}/none`, () => {}), sdk.NotFoundError)
  await files().write(`${agent.dir}/file`, '')
  await assert.rejects(files().watchDir(`${agent.dir}/file`, () => {}), sdk.SandboxError)
})

test('a timeout ends a watch', async () => {
  const dir = `${agent.dir}/timeout`
  await files().makeDir(dir)
  const ended = latch()
  await files().watchDir(dir, () => {}, { timeoutMs: 300, onExit: ended.open })
  assert.ok(await ended.promise instanceof sdk.TimeoutError)
})

test('polled watchers: create, events, drained, remove', async () => {
  const path = `${agent.dir}/polled`
  await files().makeDir(path)
  const { body } = await rpc('filesystem.Filesystem/CreateWatcher', { path, recursive: true, includeEntry: true })
  const { watcherId } = body
  await files().write(`${path}/f`, 'x')
  const seen = []
  while (!seen.some((e) => e.type === 'EVENT_TYPE_WRITE')) {
    const r = await rpc('filesystem.Filesystem/GetWatcherEvents', { watcherId })
    seen.push(...(r.body.events ?? []))
  }
  assert.equal(seen[0].type, 'EVENT_TYPE_CREATE')
  assert.equal(seen[0].name, 'f')
  assert.equal(seen[0].entry.type, 'FILE_TYPE_FILE')
  assert.equal((await rpc('filesystem.Filesystem/RemoveWatcher', { watcherId })).status, 200)
  assert.equal((await rpc('filesystem.Filesystem/GetWatcherEvents', { watcherId })).body.code, 'not_found')
})
