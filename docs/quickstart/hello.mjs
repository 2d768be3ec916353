// Code written for E2B, unchanged. What makes it run on cella are three variables that `cella up` prints:
//   E2B_API_URL and E2B_SANDBOX_URL (both the address of cella) and E2B_API_KEY.
// npm install e2b && node hello.mjs        (another SDK version: E2B_SDK=e2b-2.45 node hello.mjs)
import assert from 'node:assert/strict'

const { Sandbox } = await import(process.env.E2B_SDK ?? 'e2b')
const step = (what) => console.log(`ok  ${what}`)

const sandbox = await Sandbox.create(process.env.TEMPLATE ?? 'base', { timeoutMs: 120_000, metadata: { from: 'hello & co' } })
step(`created ${sandbox.sandboxId}`)

const out = await sandbox.commands.run('echo to stdout; echo to stderr >&2')
assert.deepEqual([out.stdout, out.stderr, out.exitCode], ['to stdout\n', 'to stderr\n', 0])
await assert.rejects(sandbox.commands.run('exit 3'), (err) => err.exitCode === 3)
step('ran commands: stdout, stderr, exit codes')

const seen = []
await sandbox.commands.run('for i in 1 2 3; do echo $i; sleep 0.2; done', { onStdout: (text) => seen.push([text, Date.now()]) })
assert.equal(seen.map(([text]) => text).join(''), '1\n2\n3\n')
assert.ok(seen.at(-1)[1] - seen[0][1] > 250, 'output arrives while the command runs')
step('streamed the output of a command')

const dir = `hello-${sandbox.sandboxId}`
await sandbox.files.write(`${dir}/grüße.txt`, 'Grüße, 世界')
assert.equal(await sandbox.files.read(`${dir}/grüße.txt`), 'Grüße, 世界')
assert.deepEqual((await sandbox.files.list(dir)).map((f) => f.name), ['grüße.txt'])
await sandbox.files.remove(dir)
step('wrote, read, listed and removed files')

await sandbox.setTimeout(600_000)
const info = await sandbox.getInfo()
assert.ok(info.endAt - Date.now() > 590_000 && info.metadata.from === 'hello & co')
const listed = await Sandbox.list({ query: { metadata: { from: 'hello & co' } } }).nextItems()
assert.ok(listed.some((s) => s.sandboxId === sandbox.sandboxId))
const again = await Sandbox.connect(sandbox.sandboxId)
assert.equal((await again.commands.run('echo again')).stdout, 'again\n')
step('set the timeout, found it in the list, connected again')

assert.equal(await sandbox.isRunning(), true)
assert.equal(await sandbox.kill(), true)
assert.equal(await sandbox.isRunning(), false)
assert.equal(await Sandbox.kill(sandbox.sandboxId), false)
step('killed it')
