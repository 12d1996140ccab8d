// Plays devices in private rounds for the Python tests: messages of a gateway in, answers out, in lines of JSON.
//
// Their storage is in memory, and a step of their program takes a tenth off the rows and adds 1 / (1 + id).

import { createInterface } from "node:readline";
import { indexOf } from "../src/examples.js";
import { DevicePolicy } from "../src/private/policy.js";
import { PrivateRounds } from "../src/private/rounds.js";
import { unpack } from "../src/wire.js";

const bytes = (text) => new Uint8Array(Buffer.from(text, "hex"));

class Memory {
  #things = new Map();

  async get(name) {
    return structuredClone(this.#things.get(name));
  }

  async names() {
    return [...this.#things.keys()];
  }

  async keep(things) {
    for (const [name, thing] of Object.entries(things)) {
      if (thing === undefined) this.#things.delete(name);
      else this.#things.set(name, structuredClone(thing));
    }
  }
}

const program = (manifest) => ({
  manifest,
  personal: (table, ids, before) => before?.rows ?? new Float32Array(ids.length * manifest.tables[table].width),
  async train({ rows, dense, index, lr }) {
    const moved = Object.fromEntries(
      Object.entries(rows).map(([table, all]) => {
        const { width } = manifest.tables[table];
        return [table, all.map((x, i) => x - 0.1 * x + lr / (1 + index[table][Math.floor(i / width)]))];
      }),
    );
    const other = Object.fromEntries(Object.entries(dense).map(([name, all]) => [name, all.map((x) => x + lr)]));
    return { rows: moved, dense: other, losses: [0.5], kept: null, milliseconds: 0 };
  },
});

const devices = new Map();

for await (const line of createInterface({ input: process.stdin })) {
  const { device, manifest, given, message, ask, policy, run } = JSON.parse(line);
  let answer;
  try {
    if (given) {
      const storage = new Memory();
      const make = () => new PrivateRounds(storage, new DevicePolicy(storage, policy));
      devices.set(device, { storage, make, its: make(), program: program(manifest), registered: { given, index: indexOf(given, manifest) }, news: [] });
      answer = { body: Buffer.from(await devices.get(device).its.registration()).toString("hex") };
    } else if (message) {
      const it = devices.get(device);
      if (ask === "reload") it.its = it.make();
      const tell = (kind, detail) => it.news.push(detail.sentence ?? kind);
      const made = await it.its.answer(unpack(bytes(message)), message.length / 2, it.program, it.registered, tell);
      answer = { body: Buffer.from(made.body).toString("hex"), line: made.line, news: it.news };
    } else if (run) {
      await new DevicePolicy(devices.get(device)?.storage ?? new Memory(), policy).checkRun(run === "private");
      answer = {};
    } else {
      answer = { kept: Object.fromEntries((await devices.get(device).storage.names()).map((name) => [name, true])), held: await devices.get(device).storage.get(ask) };
    }
  } catch (error) {
    answer = { error: error.name === "DeviceError" ? error.message : String(error.stack) };
  }
  console.log(JSON.stringify(answer));
}
