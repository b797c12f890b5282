// A program with e2b's SDK for JavaScript: addresses and key are in the environment.
import assert from 'node:assert'
import { CommandExitError, NotFoundError, Sandbox } from 'e2b'

const box = await Sandbox.create({ timeoutMs: 120_000, metadata: { made: 'by smoke.mjs' } })
try {
  assert(await box.isRunning())
  const done = await box.commands.run('echo hi; echo err >&2; echo $A', { envs: { A: '1' } })
  assert.equal(done.stdout, 'hi\n1\n')
  assert.equal(done.stderr, 'err\n')
  await assert.rejects(box.commands.run('exit 3'), (e) => e instanceof CommandExitError && e.exitCode === 3)
  await assert.rejects(box.commands.run('sleep 100', { timeoutMs: 1000 }))

  const cat = await box.commands.run('cat', { background: true, stdin: true })
  await box.commands.sendStdin(cat.pid, 'typed')
  await box.commands.closeStdin(cat.pid)
  assert.equal((await cat.wait()).stdout, 'typed')

  await box.files.write('a/b.txt', 'text')
  assert.equal(await box.files.read('a/b.txt'), 'text')
  assert.deepEqual((await box.files.list('a')).map((each) => each.name), ['b.txt'])
  await box.files.write([{ path: '1', data: 'one' }, { path: '2', data: new Blob(['two']) }])
  assert.equal(await box.files.read('2'), 'two')
  assert.equal(await box.files.exists('3'), false)
  await assert.rejects(box.files.read('3'), (e) => e instanceof NotFoundError)
  assert.equal(await (await fetch(await box.downloadUrl('1'))).text(), 'one')

  const seen = []
  const watch = await box.files.watchDir('a', (event) => seen.push(event.name))
  await box.files.makeDir('a/new')
  while (!seen.includes('new')) await new Promise((next) => setTimeout(next, 50))
  await watch.stop()

  let shown = ''
  const decoder = new TextDecoder()
  const pty = await box.pty.create({ cols: 80, rows: 24, onData: (data) => { shown += decoder.decode(data) } })
  await box.pty.resize(pty.pid, { cols: 99, rows: 33 })
  await box.pty.sendInput(pty.pid, new TextEncoder().encode('stty size; exit\n'))
  await pty.wait()
  assert.match(shown, /33 99/)

  const listed = await Sandbox.list({ query: { metadata: { made: 'by smoke.mjs' } } }).nextItems()
  assert(listed.some((each) => each.sandboxId === box.sandboxId))
} finally {
  assert(await box.kill())
}
assert.equal(await box.isRunning(), false)
console.log('done')
