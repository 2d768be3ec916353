import assert from 'node:assert/strict'
import { test } from 'node:test'
import { gzipSync } from 'node:zlib'
import { agent, rpc, useAgent } from './harness.mjs'

useAgent()
const q = (name, more = '') => `${agent.url}/files?path=${encodeURIComponent(`${agent.dir}/${name}`)}${more}`
const put = (name, body, headers = {}) =>
  fetch(q(name), { method: 'POST', body, headers: { 'Content-Type': 'application/octet-stream', ...headers } })

test('health needs nothing', async () => {
  const r = await fetch(`${agent.url}/health`)
  assert.equal(r.status, 204)
  assert.equal(await agent.sandbox.isRunning(), true)
})

test('metrics', async () => {
  const m = await (await fetch(`${agent.url}/metrics`)).json()
  for (const k of ['ts', 'cpu_count', 'mem_total', 'mem_used', 'mem_cache', 'mem_total_mib', 'mem_used_mib', 'disk_used', 'disk_total']) {
    assert.ok(m[k] > 0, `${k} = ${m[k]}`)
  }
  assert.ok(m.cpu_used_pct >= 0 && m.cpu_used_pct <= 100)
})

test('envs', async () => {
  const e = await (await fetch(`${agent.url}/envs`)).json()
  assert.equal(e.E2B_SANDBOX, 'true')
})

test('internal routes do not exist', async () => {
  for (const p of ['init', 'freeze', 'unfreeze', 'collapse', 'fsfreeze', 'fsthaw', 'upgrade']) {
    for (const method of ['GET', 'POST']) {
      const r = await fetch(`${agent.url}/${p}`, { method })
      assert.equal(r.status, 404)
      assert.equal((await r.json()).code, 404)
    }
  }
})

test('ranges and conditions', async () => {
  await put('r', '0123456789')
  const part = await fetch(q('r'), { headers: { Range: 'bytes=2-5' } })
  assert.deepEqual([part.status, part.headers.get('content-range'), await part.text()], [206, 'bytes 2-5/10', '2345'])
  const tail = await fetch(q('r'), { headers: { Range: 'bytes=-3' } })
  assert.equal(await tail.text(), '789')
  const bad = await fetch(q('r'), { headers: { Range: 'bytes=50-' } })
  assert.equal(bad.status, 416)
  const whole = await fetch(q('r'))
  const cached = await fetch(q('r'), { headers: { 'If-Modified-Since': whole.headers.get('last-modified') } })
  assert.equal(cached.status, 304)
})

test('the file’s name is offered', async () => {
  await put('n.txt', 'x')
  assert.equal((await fetch(q('n.txt'))).headers.get('content-disposition'), 'inline; filename=n.txt')
})

test('encodings', async () => {
  await put('e', 'text')
  const zipped = await fetch(q('e'), { headers: { 'Accept-Encoding': 'gzip' } })
  assert.deepEqual([zipped.headers.get('content-encoding'), await zipped.text()], ['gzip', 'text'])
  const plain = await fetch(q('e'), { headers: { 'Accept-Encoding': 'identity' } })
  assert.deepEqual([plain.headers.get('content-encoding'), await plain.text()], [null, 'text'])
  const none = await fetch(q('e'), { headers: { 'Accept-Encoding': 'br, identity;q=0' } })
  assert.equal(none.status, 406)
  assert.equal((await put('e', gzipSync('unzipped'), { 'Content-Encoding': 'gzip' })).status, 200)
  assert.equal(await (await fetch(q('e'))).text(), 'unzipped')
  assert.equal((await put('e', 'not gzip', { 'Content-Encoding': 'gzip' })).status, 400)
  assert.equal((await put('e', 'x', { 'Content-Encoding': 'br' })).status, 400)
})

test('multipart: file names as paths, other parts ignored', async () => {
  const form = new FormData()
  form.append('comment', 'not a file')
  form.append('file', new Blob(['one']), `${agent.dir}/mp/ä b.txt`)
  form.append('file', new Blob(['two']), `${agent.dir}/mp/two`)
  const r = await fetch(`${agent.url}/files`, { method: 'POST', body: form })
  assert.deepEqual((await r.json()).map((f) => [f.name, f.type]), [['ä b.txt', 'file'], ['two', 'file']])
  assert.equal(await (await fetch(q('mp/ä b.txt'))).text(), 'one')
})

test('the same path twice is refused', async () => {
  const form = new FormData()
  form.append('file', new Blob(['1']), 'x')
  form.append('file', new Blob(['2']), 'y')
  const r = await fetch(q('dup'), { method: 'POST', body: form })
  assert.equal(r.status, 400)
  assert.match((await r.json()).message, /multiple files to the same path/)
})

test('bad requests are told so in JSON', async () => {
  for (const [url, init, status] of [
    [`${agent.url}/files`, {}, 400],
    [q('missing'), {}, 404],
    [q(''), {}, 400],
    [q('x', '&username=nobody-here'), {}, 401],
    [`${agent.url}/files`, { method: 'POST', body: 'x', headers: { 'Content-Type': 'application/octet-stream' } }, 400],
    [q('x'), { method: 'POST', body: 'x', headers: { 'Content-Type': 'text/weird' } }, 400],
    [`${agent.url}/files/compose`, { method: 'POST', body: '{' }, 400],
    [`${agent.url}/nothing`, {}, 404],
  ]) {
    const r = await fetch(url, init)
    assert.equal(r.status, status, url)
    const body = await r.json()
    assert.equal(body.code, status)
    assert.ok(body.message.length > 0)
  }
})

test('compose joins and removes', async () => {
  await put('c1', 'one,')
  await put('c2', 'two')
  const sources = ['c1', 'c2'].map((n) => `${agent.dir}/${n}`)
  const r = await fetch(`${agent.url}/files/compose`, {
    method: 'POST', body: JSON.stringify({ source_paths: sources, destination: `${agent.dir}/cc/joined` }),
  })
  assert.deepEqual(await r.json(), { name: 'joined', path: `${agent.dir}/cc/joined`, type: 'file' })
  assert.equal(await (await fetch(q('cc/joined'))).text(), 'one,two')
  assert.equal((await fetch(q('c1'))).status, 404)
})

test('CORS: preflight and answer', async () => {
  const pre = await fetch(`${agent.url}/process.Process/List`, {
    method: 'OPTIONS',
    headers: { Origin: 'https://x.test', 'Access-Control-Request-Method': 'POST', 'Access-Control-Request-Headers': 'x-access-token' },
  })
  assert.equal(pre.status, 204)
  assert.equal(pre.headers.get('access-control-allow-origin'), '*')
  assert.equal(pre.headers.get('access-control-allow-headers'), 'x-access-token')
})

test('RPC: wrong method, media type, version, JSON', async () => {
  const url = `${agent.url}/process.Process/List`
  assert.equal((await fetch(url)).status, 405)
  assert.equal((await fetch(url, { method: 'POST', body: '{}', headers: { 'Content-Type': 'text/plain' } })).status, 415)
  const version = await rpc('process.Process/List', {}, { 'Connect-Protocol-Version': '2' })
  assert.deepEqual([version.status, version.body.code], [400, 'invalid_argument'])
  const bad = await fetch(url, { method: 'POST', body: '{', headers: { 'Content-Type': 'application/json' } })
  assert.deepEqual([bad.status, (await bad.json()).code], [400, 'invalid_argument'])
})

test('a handler that never reads its body runs once (C26)', async () => {
  const r = await fetch(`${agent.url}/init`, { method: 'POST', body: 'x'.repeat(100_000) })
  assert.equal(r.status, 404)
  assert.equal((await fetch(`${agent.url}/health`)).status, 204)
})
