// Minimum contributors: a device's part in fedrows/privacy/openings.py, for rows that are no refinements of each other.
//
// Rows are padded with streams that every opener shares with every party. An opener lets its pads go for the
// rows that enough parties hold, and of no other: the gateway never has a number of a row of too few.

import { DeviceError } from "../errors.js";
import { KEY, addStream, derive, digest, packIds, packParts, stream, text, unpackIds, unpackParts } from "./keys.js";
import { WORDS } from "./terms.js";

const TAGS = 4;

export class Openings {
  /** given: {rows, width, minimum, extra, openers, word, parties, turn, tables: [{rows, pieces}]}; rows and width in pieces. */
  constructor(given) {
    Object.assign(this, given);
    this.Words = WORDS[this.word];
    this.Lane = this.parties < 2 ** 8 ? Uint8Array : Uint16Array;
    this.counts = Math.ceil((this.rows * this.Lane.BYTES_PER_ELEMENT) / this.Words.BYTES_PER_ELEMENT);
    this.claimSize = this.counts + TAGS;
    this.length = this.rows * this.width + this.extra + this.openers * this.claimSize;
  }

  /** What the terms of the sum say about its rows, in Python's words. */
  async about() {
    const base = `, ${this.rows} rows of ${this.width} from ${this.minimum} holders on`;
    if (this.minimum === 1) return base;
    const columns = { group: [], value: [], pieces: [] };
    let [value, group] = [0, 0];
    for (const table of this.tables) {
      for (let i = 0; i < table.rows; i++) {
        columns.group.push(group);
        columns.value.push(value++);
        columns.pieces.push(table.pieces);
      }
      if (table.rows) group++;
    }
    const none = new Array(value).fill(0);
    const families = await digest(...[columns.group, columns.value, none, none, columns.pieces].map(packIds));
    return `${base}, families ${hexOf(families)}, turn ${this.turn}`;
  }

  /** The pieces that may open, given how many hold each. What a table keeps closed must not be one party's alone. */
  mayOpen(counts) {
    const opened = new Uint8Array(counts.length);
    let at = 0;
    for (const { rows, pieces } of this.tables) {
      const held = Array.from({ length: rows }, (_, row) => counts.subarray(at + row * pieces, at + (row + 1) * pieces).reduce((low, count) => Math.min(low, count)));
      const open = held.map((count) => count >= this.minimum);
      if (this.minimum > 1 && held.some((count) => count > 0 && count < this.minimum) && open.includes(true)) {
        const least = held.reduce((low, count, row) => (open[row] ? Math.min(low, count) : low), Infinity);
        const smallest = held.flatMap((count, row) => (count === least ? [row] : []));
        open[smallest[this.turn % smallest.length]] = false;
      }
      open.forEach((yes, row) => opened.fill(yes ? 1 : 0, at + row * pieces, at + (row + 1) * pieces));
      at += rows * pieces;
    }
    return opened;
  }

  /** Σ ρ[row]·count[row] for the ρ of an opener's secret, four times over. */
  async tags(seed, counts) {
    const factors = await stream(await derive(seed, text("tags")), TAGS * this.rows, this.Words);
    const tags = new this.Words(TAGS);
    const short = this.Words === Uint32Array;
    for (let tag = 0; tag < TAGS; tag++) {
      for (let row = 0; row < this.rows; row++) {
        if (!counts[row]) continue;
        const factor = factors[tag * this.rows + row];
        tags[tag] += short ? Math.imul(factor, counts[row]) >>> 0 : factor * BigInt(counts[row]);
      }
    }
    return tags;
  }

  /** The vector of a party. values: words (rows · width); holds: 1 for every piece that it has; extra: words behind. */
  async vector(session, values, holds, extra) {
    const words = new this.Words(this.length);
    words.set(values);
    words.set(extra, this.rows * this.width);
    const padded = words.subarray(0, this.rows * this.width);
    for (const [number, opener] of session.openers.entries()) {
      const claim = this.#claim(words, number);
      const lanes = new this.Lane(claim.buffer, claim.byteOffset, this.rows);
      lanes.set(holds);
      claim.set(await this.tags(this.#secret(session, opener), holds), this.counts);
      await addStream(claim, await session.key(opener, `claim of opener ${opener}`));
      await addStream(padded, await session.key(opener, `rows of opener ${opener}`));
    }
    return words;
  }

  /** An opener's message: which rows have enough holders, and its pads of those alone. */
  async letGo(session, request) {
    const { me, survivors } = session;
    if (request.length !== this.claimSize * this.Words.BYTES_PER_ELEMENT) throw this.#wrong();
    const words = new this.Words(request.slice().buffer);
    for (const one of survivors) await addStream(words, await session.key(one, `claim of opener ${me}`), true);
    const counts = new this.Lane(words.buffer, 0, this.rows);
    const tags = await this.tags(this.#secret(session, me), counts);
    if (!tags.every((tag, i) => tag === words[this.counts + i]) || counts.some((count) => count > survivors.length)) throw this.#wrong();
    const opened = this.mayOpen(counts);
    const pads = new this.Words(this.rows * this.width);
    for (const one of survivors) await addStream(pads, await session.key(one, `rows of opener ${me}`));
    const chosen = new this.Words(this.width * opened.reduce((sum, yes) => sum + yes, 0));
    let at = 0;
    opened.forEach((yes, row) => {
      if (yes) chosen.set(pads.subarray(row * this.width, (row + 1) * this.width), this.width * at++);
    });
    const rows = await session.sign("rows", bitsOf(opened));
    return packParts(rows, await session.sign("pads", new Uint8Array(chosen.buffer)));
  }

  /** The pieces that count as sent: those that any opener let go; all of them without a proof. */
  async sent(session, answer) {
    const all = new Uint8Array(this.rows).fill(1);
    const parts = unpackParts(answer);
    const signers = parts?.length ? unpackIds(parts[0]) : null;
    const proof = signers && signers.length === parts.length - 1 && signers.every((one) => session.openers.includes(one));
    if (!proof || signers.length <= session.terms.colluding) return all;
    const sent = new Uint8Array(this.rows);
    for (const [i, opener] of signers.entries()) {
      const bits = await session.check("rows", opener, parts[i + 1]);
      if (bits.length !== Math.ceil(this.rows / 8)) return all;
      for (let row = 0; row < this.rows; row++) sent[row] |= (bits[row >> 3] >> (7 - (row & 7))) & 1;
    }
    return sent;
  }

  #claim(words, number) {
    const start = this.rows * this.width + this.extra + number * this.claimSize;
    return words.subarray(start, start + this.claimSize);
  }

  #secret(session, opener) {
    const note = session.notes.get(opener);
    if (note?.length !== KEY) throw new DeviceError(`Opener ${opener} of a private sum has brought no secret: this device leaves the round.`);
    return note;
  }

  #wrong() {
    return new DeviceError("The counts that this device was shown are not those of the devices in the sum: it lets nothing go.");
  }
}

function bitsOf(marks) {
  const bytes = new Uint8Array(Math.ceil(marks.length / 8));
  marks.forEach((mark, i) => (bytes[i >> 3] |= mark ? 128 >> (i & 7) : 0));
  return bytes;
}

function hexOf(bytes) {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
