// A device: enrols once, registers its index set, and then trains whenever the gateway has work for it.
//
// Everything that must outlive the tab is stored before anything depends on it, so a tab may be closed or
// reloaded at any instant. In its storage are
//   enrolling            {token, bytes, key, name}: a key that was made and not yet confirmed
//   identity             {device, key, name}
//   given                the examples, as the app gave them
//   program              {id, manifest, step}
//   registered/VERSION   {program, given, index}: the data that a registration was made of
//   memory/RUN/TAG       {rows, kept}: personal rows and what the algorithm keeps, of one try of a round
//   upload               {work, sha256, bytes, line}: a finished update that the gateway may not have
//   history              one line for every round that was trained

import { DeviceError } from "./errors.js";
import { columnsOf, indexOf } from "./examples.js";
import { Gateway, Refusal, Unreachable, enrol, makeKey, sha256 } from "./gateway.js";
import { recall, remembered } from "./memory.js";
import { DevicePolicy } from "./private/policy.js";
import { PrivateRounds } from "./private/rounds.js";
import { Program } from "./program.js";
import { Storage } from "./storage.js";
import { bitsToBytes, idsToBytes, numbersFromBytes, numbersToBytes, pack, rowsFromParts, rowsToParts, unpack } from "./wire.js";

const WAIT = 20; // seconds that the gateway may hold a check-in
const AGAIN = 3; // seconds after which an unreachable gateway is asked again
const PIECE = 2 ** 20; // bytes of an upload that are sent in one go
const DROPPED = [404, 410, 422]; // the work is gone, or the refusal final

export class Device extends EventTarget {
  #storage;
  #gateway = null;
  #program = null;
  #private = null; // the device's part in a private run; null if the run is in the clear

  #asked = false; // whether the gateway has answered this tab
  #pinned;
  #policy;

  constructor(storage, pinned, policy) {
    super();
    this.#storage = storage;
    this.#pinned = pinned;
    this.#policy = new DevicePolicy(storage, policy);
  }

  /** The device so named, of whom only one tab at a time may be the owner.
   *
   * pinned: the SHA-256 of the manifest.json of the only program that it runs; without, any.
   * policy: what the device's owner asks of private runs instead of the defaults (private/policy.js).
   */
  static async open(name, { pinned, policy } = {}) {
    const storage = await Storage.open(name);
    if (!(await locked(name))) {
      storage.close();
      throw new DeviceError("This device is open in another tab: use that one, or close it and reload this page.");
    }
    navigator.storage?.persist?.().catch(() => {}); // asks that nothing be thrown away when room is short
    return new Device(storage, pinned?.toLowerCase(), policy);
  }

  get storage() {
    return this.#storage;
  }

  get program() {
    return this.#program;
  }

  async history() {
    return (await this.#storage.get("history")) ?? [];
  }

  async identity() {
    return this.#storage.get("identity");
  }

  /** Enrols with a one-time token; a second call does nothing, and one that was broken off goes on. */
  async enrol(token, name) {
    let identity = await this.identity();
    if (!identity) {
      let begun = await this.#storage.get("enrolling");
      if (!begun || (token && begun.token !== token)) {
        begun = { token, name, ...(await makeKey()) };
        await this.#storage.keep({ enrolling: begun });
      }
      const answer = await enrol(begun.token, begun.bytes, begun.name);
      identity = { device: answer.device, name: answer.name, key: begun.key };
      await this.#storage.keep({ identity, enrolling: undefined });
    }
    return identity;
  }

  /** Keeps new examples; they are registered at the next check-in. */
  async give(given) {
    await this.#storage.keep({ given: { ...given, made: crypto.randomUUID() } });
  }

  /** Checks in and trains until `signal` says stop; what fails in between is told as "trouble". */
  async run(signal) {
    const identity = await this.identity();
    if (!identity) throw new DeviceError("This device is not enrolled: give it a token of the gateway's operator.");
    this.#gateway = new Gateway(identity.device, identity.key);
    while (!signal?.aborted) {
      try {
        const pause = await this.once(signal);
        if (pause) await sleep(pause, signal);
      } catch (error) {
        if (signal?.aborted) return;
        const passing = error instanceof Unreachable || [429, 503].includes(error.status);
        if (!passing) throw error;
        this.#tell("trouble", { sentence: error.message });
        await sleep(error.answer?.after ?? AGAIN, signal);
      }
    }
  }

  /** One check-in with what follows from it; gives the seconds until the next. */
  async once(signal) {
    const wait = this.#asked ? WAIT : 0; // the first answer is shown at once, whatever it says
    const state = await this.#gateway.json("POST", `/v1/check-in?wait=${wait}`, undefined, signal);
    if (!this.#asked) state.after = 0;
    this.#asked = true;
    if (!state.program) {
      this.#tell("idle", { sentence: "The gateway has no program yet, because its federation has begun no run: this device waits." });
      return state.after;
    }
    if (this.#program?.id !== state.program) await this.#load(state.program);
    const version = await this.#register(state.registration);
    if (!version) return state.after;
    if (!state.work) {
      await this.#storage.keep({ upload: undefined }); // it was taken, or its round is over
      this.#tell("idle", {});
      return state.after;
    }
    let upload = await this.#storage.get("upload");
    if (upload?.work !== state.work.id) upload = await this.#train(state.work, signal);
    if (upload) await this.#send(upload, upload.fresh ? 0 : state.work.received, signal);
    return 0;
  }

  /** Fetches the program unless it is stored; its files are checked before any of them is used. */
  async #load(id) {
    let stored = await this.#storage.get("program");
    if (stored?.id !== id) {
      const { program, files, private: secret } = await this.#gateway.json("GET", "/v1/program");
      if (program !== id) throw new Unreachable("The program has just changed: this device asks again.");
      await this.#policy.checkRun(secret === true);
      stored = { id, files: {}, private: secret === true };
      for (const [name, facts] of Object.entries(files)) {
        const response = await this.#gateway.ask("GET", `/v1/program/${id}/${name}`);
        const bytes = new Uint8Array(await response.arrayBuffer());
        if (bytes.length !== facts.bytes || (await sha256(bytes)) !== facts.sha256) {
          throw new DeviceError(`The file ${name} of the program is not what its sum says: ask the gateway's operator.`);
        }
        stored.files[name] = bytes;
      }
      await this.#checkPinned(stored.files);
      this.#program = await Program.load(stored.id, stored.files);
      await this.#storage.keep({ program: stored });
    } else {
      await this.#policy.checkRun(stored.private);
      await this.#checkPinned(stored.files);
      this.#program = await Program.load(stored.id, stored.files);
    }
    this.#private = stored.private ? new PrivateRounds(this.#storage, this.#policy) : null;
    this.#tell("program", { manifest: this.#program.manifest });
  }

  /** Fails if only another program may run here. */
  async #checkPinned(files) {
    const sum = await sha256(files["manifest.json"]);
    if (this.#pinned && this.#pinned !== sum) {
      throw new DeviceError(`The gateway's program is not the pinned one: the SHA-256 of its manifest.json is ${sum}, so this device has not run it.`);
    }
  }

  /** Registers the newest data unless the gateway has them; gives their version. */
  async #register(known) {
    const given = await this.#storage.get("given");
    if (!given) return null;
    const { id, manifest } = this.#program;
    const last = known && (await this.#storage.get(`registered/${known}`));
    if (last?.program === id && last.given.made === given.made) return known;
    const index = indexOf(given, manifest);
    const parts = {};
    for (const [table, ids] of Object.entries(index)) {
      if (!manifest.tables[table].local) parts[`index/${table}`] = idsToBytes(ids);
    }
    const shown = pack("registration", JSON.stringify({ examples: given.label.length }), parts);
    const body = this.#private ? await this.#private.registration() : shown;
    const version = (await sha256(body)).slice(0, 32);
    await this.#storage.keep({ [`registered/${version}`]: { program: id, given, index } });
    await this.#gateway.json("PUT", `/v1/registration?program=${id}`, body);
    this.#tell("registered", { rows: counted(index), bytes: body.length });
    return version;
  }

  /** Downloads the rows of some work and trains on them; the result is stored before it is sent. */
  async #train(work, signal) {
    let message;
    try {
      message = unpack(await this.#gateway.download(`/v1/work/${work.id}`, work.bytes, signal));
    } catch (error) {
      if (DROPPED.includes(error.status)) return null;
      throw error;
    }
    const { facts, parts } = message;
    const registered = await this.#storage.get(`registered/${facts.registration}`);
    if (!registered || facts.program !== this.#program.id) {
      throw new DeviceError("The work is cut for data that this device does not have: enrol it anew.");
    }
    if ((message.kind === "sum") !== Boolean(this.#private)) {
      throw new DeviceError("The gateway asks for another kind of work than its run is of: this device does none of it.");
    }
    if (this.#private) return this.#answer(message, work, registered);
    if (!isWork(facts)) throw new DeviceError("The gateway's work does not say what it is for: ask its operator.");
    const { manifest } = this.#program;
    const { given, index } = registered;
    const { before, past } = await recall(this.#storage, facts);
    const rows = {};
    for (const [table, { width, local }] of Object.entries(manifest.tables)) {
      rows[table] = local
        ? this.#program.personal(table, index[table], before?.rows?.[table])
        : rowsFromParts(parts, `model/${table}`, index[table].length, width);
    }
    const dense = denseFromParts(parts, "model", manifest.dense);
    const sent = manifest.algorithm.sends ? submodelFromParts(parts, "sent", manifest, index) : null;
    this.#tell("rows", { round: facts.round, bytes: work.bytes, rows: counted(rows, manifest) });
    const examples = columnsOf(given, manifest, index);
    const result = await this.#program.train({
      examples, index, rows, dense, sent, kept: before?.kept ?? null,
      lr: facts.lr, round: facts.round, number: facts.number,
    });
    const body = pack("trained", `{"tag":${facts.tag}}`, updateParts(result, rows, dense, manifest));
    const line = {
      round: facts.round, losses: result.losses, milliseconds: result.milliseconds,
      down: work.bytes, up: body.length, rows: counted(rows, manifest),
    };
    const upload = { work: work.id, bytes: body, sha256: await sha256(body), line };
    await this.#storage.keep({
      ...remembered(facts, past, manifest, index, result),
      history: [...(await this.history()), line],
      upload,
    });
    this.#tell("trained", { ...line, given, index, result });
    return { ...upload, fresh: true };
  }

  /** The answer to one phase of a private sum. It is not stored: a tab that is closed drops out of the sum. */
  async #answer(message, work, registered) {
    const tell = (kind, detail) => this.#tell(kind, detail);
    const { body, line } = await this.#private.answer(message, work.bytes, this.#program, registered, tell);
    if (line) await this.#storage.keep({ history: [...(await this.history()), line] });
    return { work: work.id, bytes: body, sha256: await sha256(body), line, fresh: true };
  }

  /** Sends a finished update from where the gateway has it. */
  async #send(upload, received, signal) {
    const { work, bytes, sha256: sum } = upload;
    try {
      for (let at = received, state = "open"; state === "open"; ) {
        const path = `/v1/work/${work}?offset=${at}&total=${bytes.length}&sha256=${sum}`;
        try {
          ({ received: at, state } = await this.#gateway.json("PUT", path, bytes.slice(at, at + PIECE), signal));
        } catch (error) {
          if (error.status !== 409 || error.answer.received === at) throw error;
          at = error.answer.received;
        }
      }
    } catch (error) {
      if (!DROPPED.includes(error.status)) throw error;
      await this.#storage.keep({ upload: undefined });
      this.#tell("idle", {});
      this.#tell("trouble", { sentence: error.message });
      return;
    }
    await this.#storage.keep({ upload: undefined });
    if (upload.line) this.#tell("sent", upload.line);
  }

  #tell(kind, detail) {
    this.dispatchEvent(new CustomEvent("news", { detail: { kind, ...detail } }));
  }
}

/** Whether the facts of some work are of the kinds that they must be of. */
function isWork({ run, tag, accepted, round, number, lr }) {
  const named = [run, tag, accepted].every((x) => typeof x === "string");
  return named && Number.isSafeInteger(round) && Number.isSafeInteger(number) && Number.isFinite(lr);
}

function denseFromParts(parts, name, shapes) {
  return Object.fromEntries(
    Object.entries(shapes).map(([tensor, shape]) => {
      const count = shape.reduce((product, size) => product * size, 1);
      return [tensor, numbersFromBytes(parts[`${name}.${tensor}`], count, tensor)];
    }),
  );
}

function submodelFromParts(parts, name, manifest, index) {
  const rows = {};
  for (const [table, { width, local }] of Object.entries(manifest.tables)) {
    if (!local) rows[table] = rowsFromParts(parts, `${name}/${table}`, index[table].length, width);
  }
  return { rows, dense: denseFromParts(parts, name, manifest.dense) };
}

function submodelToParts(name, rows, dense, manifest) {
  const parts = {};
  for (const [table, { width, local }] of Object.entries(manifest.tables)) {
    if (!local) Object.assign(parts, rowsToParts(`${name}/${table}`, rows[table], width));
  }
  for (const [tensor, numbers] of Object.entries(dense)) parts[`${name}.${tensor}`] = numbersToBytes(numbers);
  return parts;
}

/** What is sent back: end − start, the number of steps, and what else the algorithm returns. */
function updateParts(result, rows, dense, manifest) {
  const less = (end, start) => end.map((x, i) => x - start[i]);
  const over = (ends, starts) => Object.fromEntries(Object.entries(ends).map(([name, end]) => [name, less(end, starts[name])]));
  const parts = submodelToParts("update", over(result.rows, rows), over(result.dense, dense), manifest);
  parts.steps = idsToBytes([result.steps + 1]);
  parts.losses = numbersToBytes(Float32Array.of(result.losses[0]));
  for (const [name, more] of Object.entries(result.returns ?? {})) {
    Object.assign(parts, submodelToParts(name, more.rows, more.dense, manifest));
  }
  for (const [table, marks] of Object.entries(result.occurred ?? {})) parts[`occurred/${table}`] = bitsToBytes(marks);
  return parts;
}

/** How many rows of each shared table. */
function counted(rows, manifest) {
  return Object.fromEntries(
    Object.entries(rows).map(([table, x]) => [table, manifest ? x.length / manifest.tables[table].width : x.length]),
  );
}

/** Whether this tab now owns the device, for as long as it is open. */
function locked(name) {
  return new Promise((resolve) => {
    navigator.locks.request(`fedrows device ${name}`, { ifAvailable: true }, (lock) => {
      resolve(Boolean(lock));
      return lock ? new Promise(() => {}) : undefined;
    });
  });
}

function sleep(seconds, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, 1000 * seconds);
    signal?.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });
}

export { Refusal };
