// Starts a bare agent for one test file and gives it an SDK sandbox that talks to it.
//
//   CELLA_AGENT   the agent's binary; bin/cella-agent if not set
//   E2B_SDK       the package under test: e2b or e2b-2.45
//   E2B_SANDBOX_URL   an agent that runs already; none is started then
//   E2B_API_URL       with E2B_SANDBOX_URL and E2B_API_KEY: a whole service, in which each file makes a sandbox
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { createInterface } from 'node:readline'
import { after, before } from 'node:test'

const binary = process.env.CELLA_AGENT ?? new URL('../../../bin/cella-agent', import.meta.url).pathname

const service = process.env.E2B_API_URL
if (!service) process.env.E2B_DEBUG = 'true'
export const sdk = await import(process.env.E2B_SDK ?? 'e2b')

/** Filled before a file's tests run: sandbox (SDK), url and pid of the agent, home of the default user. */
export const agent = {}

export function useAgent() {
  let child
  before(async () => {
    if (process.env.E2B_SANDBOX_URL) {
      agent.url = process.env.E2B_SANDBOX_URL
    } else {
      child = spawn(binary, ['--debug', '--listen', '127.0.0.1:0'], { stdio: ['ignore', 'ignore', 'pipe'] })
      agent.pid = child.pid
      // A test file that is cut short must not leave its agent behind.
      process.on('exit', () => child.kill('SIGKILL'))
      agent.url = await firstAddress(child)
    }
    process.env.E2B_SANDBOX_URL = agent.url
    agent.sandbox = await (service ? sdk.Sandbox.create(process.env.TEMPLATE ?? 'base', { timeoutMs: 600_000 }) : sdk.Sandbox.create())
    if (service) fetchFrom(agent.sandbox)
    agent.home = (await agent.sandbox.commands.run('echo -n $HOME')).stdout
    const dir = `${agent.home}/cella-e2btest-${process.pid}`
    await agent.sandbox.files.makeDir(dir)
    agent.dir = dir
  })
  after(async () => {
    // Only what the tests made: set-up may have failed before there was anything.
    if (agent.dir) await agent.sandbox.files.remove(agent.dir)
    if (service) await agent.sandbox?.kill()
    if (child) {
      child.kill('SIGTERM')
      await once(child, 'exit')
    }
  })
}

async function firstAddress(child) {
  for await (const line of createInterface({ input: child.stderr })) {
    const match = /msg=serving addr=(\S+)/.exec(line)
    if (match) {
      child.stderr.resume()
      return `http://${match[1]}`
    }
  }
  throw new Error(`${binary} ended before it served`)
}

/** Makes the tests' own calls of fetch reach the sandbox behind the service, as the SDK's do. */
function fetchFrom(sandbox) {
  const plain = globalThis.fetch
  globalThis.fetch = (url, init = {}) => {
    if (typeof url !== 'string' || !url.startsWith(agent.url)) return plain(url, init)
    const headers = new Headers(init.headers)
    headers.set('E2b-Sandbox-Id', sandbox.sandboxId)
    headers.set('E2b-Sandbox-Port', '49983')
    if (sandbox.envdAccessToken) headers.set('X-Access-Token', sandbox.envdAccessToken)
    return plain(url, { ...init, headers })
  }
}

/** Calls an RPC method without the SDK: JSON in, JSON and status out. */
export async function rpc(method, body, headers = {}) {
  const res = await fetch(`${agent.url}/${method}`, {
    method: 'POST',
    headers: { 'Content-Type': 'application/json', ...headers },
    body: JSON.stringify(body),
  })
  return { status: res.status, body: await res.json() }
}

/** Opens a server stream without the SDK and yields its frames as [flags, message]. */
export async function* frames(method, body, { headers = {}, signal } = {}) {
  const payload = Buffer.from(JSON.stringify(body))
  const head = Buffer.alloc(5)
  head.writeUInt32BE(payload.length, 1)
  const res = await fetch(`${agent.url}/${method}`, {
    method: 'POST', signal,
    headers: { 'Content-Type': 'application/connect+json', ...headers },
    body: Buffer.concat([head, payload]),
  })
  let buf = Buffer.alloc(0)
  for await (const chunk of res.body) {
    buf = Buffer.concat([buf, chunk])
    while (buf.length >= 5 && buf.length >= 5 + buf.readUInt32BE(1)) {
      const end = 5 + buf.readUInt32BE(1)
      yield [buf[0], JSON.parse(buf.subarray(5, end))]
      buf = buf.subarray(end)
    }
  }
}

/** The resident memory of the agent in bytes; undefined if it isn't ours. */
export async function agentMemory() {
  if (!agent.pid) return undefined
  const { readFile } = await import('node:fs/promises')
  return 1024 * Number(/VmRSS:\s+(\d+)/.exec(await readFile(`/proc/${agent.pid}/status`, 'utf8'))[1])
}

/** A promise that is settled from outside, for waiting on callbacks. */
export function latch() {
  let resolve
  const promise = new Promise((r) => { resolve = r })
  return { promise, open: resolve }
}
