// A device's part in private runs: it answers the phases of secure sums, and shows its rows and its update to nobody.
//
//   heat     1 for every row that it holds
//   union    a random word for every row that it holds
//   update   what it made of its rows
//
// A sum lives in this tab alone: one that is closed drops out, and the others go on. In the storage are
//   signing       the device's key, which cannot be read
//   newest sum    the newest name of a sum; names rise, and no sum is begun twice
//   held/RUN      rows that were not opened, for the next upload
// and what its policy counts (policy.js).

import { DeviceError } from "../errors.js";
import { columnsOf } from "../examples.js";
import { hex } from "../gateway.js";
import { recall, remembered } from "../memory.js";
import { idsFromBytes, numbersFromBytes, pack, rowsFromParts, unpack } from "../wire.js";
import { contribution, keepBack, rowsOf, SumRows, toStore } from "./contribution.js";
import { encode, marks } from "./fixed_point.js";
import { SigningKey } from "./keys.js";
import { DevicePolicy } from "./policy.js";
import { SumHalf } from "./sum_half.js";
import { SumTerms } from "./terms.js";

const AT_A_TIME = 4; // sums that are remembered
const NAME = /^[0-9a-f]{32}$/;

export class PrivateRounds {
  #storage;
  #policy;
  #sums = new Map(); // name → {half, about, down, up, end}

  constructor(storage, policy = new DevicePolicy(storage)) {
    this.#storage = storage;
    this.#policy = policy;
  }

  /** The message that registers this device for a private run: its public key, and nothing of its data. */
  async registration() {
    const key = await this.#key();
    return pack("registration", '{"examples":1}', { key: key.public });
  }

  /** The answer to one phase of a sum, and a line of history if it was the last one of a round. */
  async answer(message, size, program, registered, tell) {
    const { sum: name, phase } = message.facts;
    let sum;
    try {
      if (!NAME.test(name)) throw new DeviceError("The gateway asks for a sum without a name: this device takes no part.");
      if (phase === 0 && !this.#sums.has(name)) await this.#begin(name, message, program, registered, tell);
      sum = this.#sums.get(name);
      if (!sum) throw new DeviceError("This tab was closed in the middle of a private sum: it takes part in the next one.");
      const reply = await sum.half.reply(phase, message.parts.request ?? new Uint8Array(0));
      sum.down += size;
      sum.up += reply?.length ?? 0;
      if (!reply) return { body: pack("silent", "{}", {}), line: await this.#end(name, sum) };
      return { body: pack("sum", JSON.stringify({ sum: name, phase }), { reply }), line: null };
    } catch (error) {
      if (!(error instanceof DeviceError)) throw error;
      this.#sums.delete(name);
      tell("trouble", { sentence: error.message });
      return { body: pack("silent", "{}", {}), line: null };
    }
  }

  async #key() {
    let kept = await this.#storage.get("signing");
    if (!kept) {
      const made = await SigningKey.make();
      kept = { key: made.key, public: made.public };
      await this.#storage.keep({ signing: kept });
    }
    return new SigningKey(kept.key, kept.public);
  }

  async #begin(name, message, program, registered, tell) {
    const newest = (await this.#storage.get("newest sum")) ?? "";
    if (name.slice(0, 16) <= newest) throw new DeviceError("The gateway asks for a private sum that is not a new one: this device takes no part.");
    await this.#storage.keep({ "newest sum": name.slice(0, 16) });
    const agreed = unpack(message.parts.terms ?? new Uint8Array(0));
    const about = agreed.facts ?? {};
    this.#policy.check(about);
    const shared = Object.entries(program.manifest.tables).filter(([, facts]) => !facts.local);
    const known = new Map(shared.map(([table, { rows, width }]) => [table, `${rows} of ${width}`]));
    const fitting = about.tables.filter((one) => known.get(one.name) === `${one.rows} of ${one.width}`);
    const all = new Set(fitting.map((one) => one.name)).size === known.size && about.tables.length === known.size;
    if (about.sum !== name || about.run !== message.facts.run || !all) {
      throw new DeviceError("The gateway's terms of a sum are for another one, or for other tables: this device takes no part.");
    }
    const bytes = new Uint8Array(await crypto.subtle.digest("SHA-256", message.parts.terms));
    const cohort = about.parties.map((_, party) => party);
    const registry = new Map(about.parties.map((key, party) => [party, Uint8Array.from(key.match(/../g), (byte) => parseInt(byte, 16))]));
    const terms = { name: `${name}, ${hex(bytes)}`, cohort, threshold: about.threshold, colluding: about.colluding };
    const made = await this.#uses(about, agreed, message.facts, program, registered, cohort.length, tell);
    const wholeTerms = await SumTerms.of({ ...terms, ...(await made.terms()) });
    await this.#policy.use(about.use, registered.given.made);
    const half = new SumHalf(wholeTerms, message.facts.party, await this.#key(), registry, made.vector, made.plan ?? null);
    while (this.#sums.size >= AT_A_TIME) this.#sums.delete(this.#sums.keys().next().value);
    this.#sums.set(name, { half, about, down: 0, up: 0, end: made.end });
  }

  /** What a use puts into its sum: {terms, plan, vector, end}. */
  async #uses(about, agreed, own, program, registered, parties, tell) {
    if (about.use === "update") return this.#update(about, agreed, own, program, registered, parties, tell);
    if (!["heat", "union"].includes(about.use)) throw new DeviceError("The gateway asks for a sum that this page does not know: reload it.");
    const places = [];
    let rows = 0;
    for (const table of about.tables) {
      for (const id of registered.index[table.name]) places.push(rows + id);
      rows += table.rows;
    }
    const vector = async () => {
      if (about.use === "union") return marks(places, rows);
      const counts = new Uint32Array(rows);
      for (const place of places) counts[place] = 1;
      return counts;
    };
    return { terms: async () => ({ length: rows, word: "uint32" }), vector, end: async () => null };
  }

  async #update(about, { parts }, own, program, registered, parties, tell) {
    const { manifest } = program;
    const { dense } = about;
    const fits = dense.every(({ name, shape }) => String(manifest.dense[name]) === String(shape));
    const all = fits && new Set(dense.map(({ name }) => name)).size === Object.keys(manifest.dense).length;
    const most = Math.max(1, about.range);
    if (!all || dense.length !== Object.keys(manifest.dense).length || !(about.coding.range >= most)) {
      throw new DeviceError("The gateway's terms of an update do not fit the program: this device takes no part.");
    }
    const tables = about.tables.map(({ name, width }) => ({ name, width, ids: idsFromBytes(parts[`union/${name}`] ?? new Uint8Array(0)) }));
    const shapes = dense.map(({ shape }) => shape.reduce((product, size) => product * size, 1));
    const figures = 1 + Number(about.losses);
    const rows = new SumRows(tables, figures, shapes.reduce((sum, size) => sum + size, 0), about.minimum > 1);
    const plan = rows.plan(about, parties);
    let sent = null;
    let line = null;
    const vector = async (session) => {
      const trained = await this.#trained(about, parts, own, program, registered, rows, tell);
      const held = rowsOf(await this.#storage.get(`held/${about.run}`), tables);
      const behind = trained.update ? [1, ...(about.losses ? [trained.loss] : []), ...trained.dense] : new Array(rows.extra).fill(0);
      sent = contribution(rows, trained.update, held, behind, about.range);
      ({ line } = trained);
      // Without a proof of what was opened all of it counts as sent.
      await this.#storage.keep({ ...trained.keep, [`held/${about.run}`]: toStore(held) });
      const words = await encode(sent.values, about.coding);
      return plan.vector(session, words, sent.holds, await encode(Float64Array.from(sent.extra), about.coding));
    };
    const end = async (opened) => {
      const held = rowsOf(await this.#storage.get(`held/${about.run}`), tables);
      keepBack(rows, sent, held, opened);
      await this.#storage.keep({ [`held/${about.run}`]: toStore(held) });
      return line;
    };
    return { terms: async () => ({ length: plan.length, word: plan.word, openers: about.openers, about: await plan.about() }), plan, vector, end };
  }

  /** What the device made of its rows, and what it is to keep; no update if the union lacks one of them. */
  async #trained(about, parts, own, program, registered, rows, tell) {
    const { manifest } = program;
    const { given, index } = registered;
    const facts = { run: about.run, tag: own.tag, accepted: own.accepted };
    const { before, past } = await recall(this.#storage, facts);
    if (!rows.tables.every(({ name, place }) => index[name].every((id) => place.has(id)))) {
      return { update: null, line: null, keep: before ? { [`memory/${about.run}/${own.tag}`]: before } : {} };
    }
    const start = {};
    for (const [table, { local }] of Object.entries(manifest.tables)) {
      if (local) start[table] = program.personal(table, index[table], before?.rows?.[table]);
    }
    for (const { name, width, ids, place } of rows.tables) {
      const all = rowsFromParts(parts, `model/${name}`, ids.length, width);
      start[name] = new Float32Array(index[name].length * width);
      index[name].forEach((id, i) => start[name].set(all.subarray(place.get(id) * width, (place.get(id) + 1) * width), i * width));
    }
    const dense = {};
    for (const [name, shape] of Object.entries(manifest.dense)) {
      const size = shape.reduce((product, each) => product * each, 1);
      dense[name] = numbersFromBytes(parts[`model.${name}`], size, name);
    }
    const counted = Object.fromEntries(rows.tables.map(({ name, ids }) => [name, ids.length]));
    tell("rows", { round: about.round, rows: counted });
    const result = await program.train({
      examples: columnsOf(given, manifest, index), index, rows: start, dense, sent: null, kept: null,
      lr: about.lr, round: about.round, number: own.number,
    });
    const line = { round: about.round, losses: result.losses, milliseconds: result.milliseconds, rows: counted };
    tell("trained", { ...line, given, index, result });
    const update = new Map(
      rows.tables.map(({ name, width }) => [
        name,
        new Map(Array.from(index[name], (id, i) => [id, Array.from({ length: width }, (_, j) => Math.fround(result.rows[name][i * width + j] - start[name][i * width + j]))])),
      ]),
    );
    return {
      update,
      line,
      loss: result.losses[0],
      dense: about.dense.flatMap(({ name }) => Array.from(result.dense[name], (x, i) => Math.fround(x - dense[name][i]))),
      keep: remembered(facts, past, manifest, index, result),
    };
  }

  /** Ends a sum; gives the round's line of history, with all bytes that the sum took. */
  async #end(name, sum) {
    this.#sums.delete(name);
    const line = await sum.end(sum.half.sent);
    return line && { ...line, down: sum.down, up: sum.up };
  }
}
