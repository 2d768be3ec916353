import assert from 'node:assert/strict'
import { createHash, randomBytes } from 'node:crypto'
import { test } from 'node:test'
import { agent, agentMemory, rpc, sdk, useAgent } from './harness.mjs'

useAgent()
const files = () => agent.sandbox.files
const at = (name) => `${agent.dir}/${name}`
const sha = (data) => createHash('sha256').update(data).digest('hex')

test('write and read text', async () => {
  const info = await files().write(at('a.txt'), 'héllo\n')
  assert.deepEqual([info.name, info.path, info.type], ['a.txt', at('a.txt'), 'file'])
  assert.equal(await files().read(at('a.txt')), 'héllo\n')
})

test('an empty file, a dotfile, a name with spaces and umlauts (C11)', async () => {
  for (const [name, data] of [['empty', ''], ['.dot', 'x'], ['two words äöü 中.txt', 'y'], ["quote's%20&+#?.txt", 'z']]) {
    await files().write(at(name), data)
    assert.equal(await files().read(at(name)), data, name)
    assert.equal(await files().exists(at(name)), true, name)
  }
})

test('bytes are exact', async () => {
  const data = randomBytes(1 << 20)
  await files().write(at('bytes'), data.buffer.slice(data.byteOffset, data.byteOffset + data.length))
  const back = await files().read(at('bytes'), { format: 'bytes' })
  assert.equal(sha(back), sha(data))
})

test('reading as a stream and as a blob', async () => {
  await files().write(at('s'), 'abc')
  const chunks = []
  for await (const c of await files().read(at('s'), { format: 'stream' })) chunks.push(Buffer.from(c))
  assert.equal(Buffer.concat(chunks).toString(), 'abc')
  assert.equal(await (await files().read(at('s'), { format: 'blob' })).text(), 'abc')
})

test('gzip both ways', async () => {
  const text = 'zip me '.repeat(10_000)
  await files().write(at('z'), text, { gzip: true })
  assert.equal(await files().read(at('z'), { gzip: true }), text)
  assert.equal(await files().read(at('z')), text)
})

test('octet-stream upload', async () => {
  await files().write(at('oct'), 'raw', { useOctetStream: true })
  assert.equal(await files().read(at('oct')), 'raw')
})

test('many files in one request', async () => {
  const list = Array.from({ length: 50 }, (_, i) => ({ path: at(`many/${i} ü.txt`), data: `n${i}` }))
  const infos = await files().write(list)
  assert.deepEqual(infos.map((i) => i.path), list.map((l) => l.path))
  for (const { path, data } of list) assert.equal(await files().read(path), data)
})

test('an overwrite replaces all', async () => {
  await files().write(at('o'), 'a long first version')
  await files().write(at('o'), 'short')
  assert.equal(await files().read(at('o')), 'short')
})

test('parents are made, and belong to the user', async () => {
  await files().write(at('p/q/r.txt'), 'x')
  const who = (await agent.sandbox.commands.run('id -un')).stdout
  const r = await agent.sandbox.commands.run(`stat -c %U ${at('p')} ${at('p/q')} ${at('p/q/r.txt')}`)
  assert.equal(r.stdout, who.repeat(3))
})

test('relative and ~ paths are the user’s home', async () => {
  const name = `cella-e2btest-rel-${process.pid}`
  await files().write(name, 'rel')
  assert.equal(await files().read(`${agent.home}/${name}`), 'rel')
  assert.equal(await files().read(`~/${name}`), 'rel')
  await files().remove(name)
})

test('a missing file is not found', async () => {
  await assert.rejects(files().read(at('none')), sdk.NotFoundError)
  await assert.rejects(files().getInfo(at('none')), sdk.NotFoundError)
  assert.equal(await files().exists(at('none')), false)
})

test('a directory is neither read nor written', async () => {
  await files().makeDir(at('d'))
  await assert.rejects(files().read(at('d')), sdk.InvalidArgumentError)
  await assert.rejects(files().write(at('d'), 'x'), sdk.InvalidArgumentError)
})

test('makeDir says whether it made one', async () => {
  assert.equal(await files().makeDir(at('new/deep/dir')), true)
  assert.equal(await files().makeDir(at('new/deep/dir')), false)
  await files().write(at('notdir'), '')
  await assert.rejects(files().makeDir(at('notdir')), sdk.InvalidArgumentError)
})

test('list: names, types, sizes, depth', async () => {
  await files().write(at('l/one'), '123')
  await files().write(at('l/sub/two'), '4')
  await files().write(at('l/sub/deeper/three'), '')
  const flat = await files().list(at('l'))
  assert.deepEqual(flat.map((e) => [e.name, e.type, e.size]).sort(), [['one', 'file', 3], ['sub', 'dir', flat.find((e) => e.name === 'sub').size]])
  const two = await files().list(at('l'), { depth: 2 })
  assert.deepEqual(two.map((e) => e.path).sort(), ['one', 'sub', 'sub/deeper', 'sub/two'].map((n) => at(`l/${n}`)))
  const all = await files().list(at('l'), { depth: 9 })
  assert.equal(all.length, 5)
})

test('list of a missing directory and of a file', async () => {
  await assert.rejects(files().list(at('nodir')), sdk.NotFoundError)
  await files().write(at('plain'), '')
  await assert.rejects(files().list(at('plain')), sdk.InvalidArgumentError)
  await assert.rejects(files().list(at('l'), { depth: 0 }), sdk.InvalidArgumentError)
})

test('info: mode, permissions, owner, time', async () => {
  const before = Date.now() - 2000
  await files().write(at('i'), 'four')
  await agent.sandbox.commands.run(`chmod 640 ${at('i')}`)
  const i = await files().getInfo(at('i'))
  const who = (await agent.sandbox.commands.run('id -un; id -gn')).stdout.split('\n')
  assert.deepEqual([i.size, i.mode, i.permissions, i.owner, i.group], [4, 0o640, '-rw-r-----', who[0], who[1]])
  assert.ok(i.modifiedTime >= new Date(before) && i.modifiedTime <= new Date(Date.now() + 2000))
  assert.equal(i.symlinkTarget, undefined)
})

test('symbolic links show their target', async () => {
  await files().write(at('real'), 'data')
  await agent.sandbox.commands.run('ln -s real link; ln -s nowhere broken; mkdir td; ln -s td dlink; ln -s loop loop', { cwd: agent.dir })
  const link = await files().getInfo(at('link'))
  assert.deepEqual([link.type, link.symlinkTarget, link.path], ['file', at('real'), at('link')])
  assert.equal((await files().getInfo(at('dlink'))).type, 'dir')
  assert.equal((await files().getInfo(at('broken'))).type, undefined)
  assert.equal((await files().getInfo(at('loop'))).name, 'loop')
  assert.equal(await files().read(at('link')), 'data')
})

test('rename moves files and directories, and makes parents', async () => {
  await files().write(at('old'), 'v')
  const info = await files().rename(at('old'), at('into/new'))
  assert.deepEqual([info.name, info.path, info.type], ['new', at('into/new'), 'file'])
  assert.equal(await files().exists(at('old')), false)
  await files().rename(at('into'), at('moved'))
  assert.equal(await files().read(at('moved/new')), 'v')
  await assert.rejects(files().rename(at('gone'), at('x')), sdk.NotFoundError)
})

test('remove is recursive and forgives', async () => {
  await files().write(at('rm/a/b'), '')
  await files().remove(at('rm'))
  assert.equal(await files().exists(at('rm')), false)
  await files().remove(at('rm'))
})

test('another user’s files are that user’s', async () => {
  await files().write(at('of-root'), 'secret', { user: 'root' })
  assert.equal((await files().getInfo(at('of-root'), { user: 'root' })).owner, 'root')
  await files().remove(at('of-root'), { user: 'root' })
  await assert.rejects(files().read('x', { user: 'no-such-user' }), sdk.AuthenticationError)
})

test('metadata is kept, listed, replaced', async () => {
  const meta = { author: 'mish', purpose: 'upload' }
  const info = await files().write(at('m'), 'x', { metadata: meta })
  assert.deepEqual({ ...info.metadata }, meta)
  assert.deepEqual({ ...(await files().getInfo(at('m'))).metadata }, meta)
  assert.deepEqual({ ...(await files().list(agent.dir)).find((e) => e.name === 'm').metadata }, meta)
  await files().rename(at('m'), at('m2'))
  assert.deepEqual({ ...(await files().getInfo(at('m2'))).metadata }, meta)
  await files().write(at('m2'), 'y')
  assert.equal((await files().getInfo(at('m2'))).metadata, undefined)
})

test('files of /proc are read to their end', async () => {
  assert.match(await files().read('/proc/meminfo'), /^MemTotal: /)
})

test('256 MiB go up and down in flat memory (C11)', { timeout: 120_000 }, async () => {
  const size = 256 << 20
  const block = randomBytes(1 << 20)
  const hash = createHash('sha256')
  const before = await agentMemory()
  const body = new ReadableStream({
    sent: 0,
    pull(c) {
      if (this.sent === size) return c.close()
      hash.update(block)
      c.enqueue(new Uint8Array(block))
      this.sent += block.length
    },
  })
  const up = await fetch(`${agent.url}/files?path=${encodeURIComponent(at('big'))}`, {
    method: 'POST', body, duplex: 'half', headers: { 'Content-Type': 'application/octet-stream' },
  })
  assert.equal(up.status, 200)
  const back = createHash('sha256')
  let n = 0
  for await (const c of await files().read(at('big'), { format: 'stream' })) { back.update(c); n += c.length }
  assert.equal(n, size)
  assert.equal(back.digest('hex'), hash.digest('hex'))
  const after = await agentMemory()
  if (before) assert.ok(after - before < 16 << 20, `memory grew from ${before} to ${after}`)
  await files().remove(at('big'))
})

test('numbers may come as strings, unknown fields are ignored', async () => {
  const r = await rpc('filesystem.Filesystem/ListDir', { path: agent.dir, depth: '1', unknown: { x: 1 } })
  assert.equal(r.status, 200)
  assert.equal(typeof r.body.entries[0].size, 'string')
})
