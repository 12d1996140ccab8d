// What a device puts into a sum of updates: fedrows/privacy/weighted_mean.py and layout.py for one client of weight 1.
//
//   its update, and what it has held back of these rows, cut to ± range
//   behind the rows: its weight, its loss if it is told, its dense tensors
//
// What is cut off or not opened stays with the device, which adds it to its next upload.

import { Openings } from "./openings.js";

const divisor = (a, b) => (b ? divisor(b, a % b) : a);

/**
 * Where the numbers of a round stand. tables: [{name, width, ids}], ids of the union, rising.
 * figures, dense: how many numbers stand behind the rows: the weight and the loss, and the dense ones. Where rows
 * of few stay closed, each of the two is one row more; else they are opened in any case.
 */
export class SumRows {
  constructor(tables, figures, dense, closed) {
    this.piece = tables.map(({ width }) => width).reduce(divisor, 0) || 1;
    this.tables = [];
    this.numbers = 0;
    for (const { name, width, ids } of tables) {
      this.tables.push({ name, width, ids, start: this.numbers, place: new Map(ids.map((id, i) => [id, i])) });
      this.numbers += ids.length * width;
    }
    this.extra = figures + dense;
    this.behind = [];
    this.size = this.numbers; // of what opens by its holders
    const parts = [[0, figures], [figures, this.extra]].filter(([low, high]) => closed && low < high);
    for (const [low, high] of parts) {
      const pieces = Math.ceil((high - low) / this.piece);
      this.behind.push({ low, high, pieces, start: this.size });
      this.size += pieces * this.piece;
    }
  }

  /** The plan of the sum. about: the terms' facts. */
  plan(about, parties) {
    return new Openings({
      rows: this.size / this.piece,
      width: this.piece,
      minimum: about.minimum,
      extra: this.behind.length ? 0 : this.extra,
      openers: about.openers,
      word: `uint${about.coding.bits}`,
      parties,
      turn: about.round,
      tables: [
        ...this.tables.map(({ ids, width }) => ({ rows: ids.length, pieces: width / this.piece })),
        ...this.behind.map(({ pieces }) => ({ rows: 1, pieces })),
      ],
    });
  }
}

/** Rows by table and id: Map of table → Map of id → Float64Array. */
export function rowsOf(stored, tables) {
  return new Map(tables.map(({ name }) => [name, new Map(stored?.[name] ?? [])]));
}

/** The same as plain things that a storage keeps. */
export function toStore(rows) {
  return Object.fromEntries([...rows].map(([table, own]) => [table, [...own].filter(([, row]) => row.some((x) => x !== 0))]));
}

/** Adds a row to what is there under its id. */
function add(rows, id, row) {
  const known = rows.get(id);
  if (known) known.forEach((x, i) => (known[i] = x + row[i]));
  else rows.set(id, Float64Array.from(row));
}

const finite = (x) => (Number.isFinite(x) ? x : 0);
const clipped = (x, most) => Math.min(Math.max(finite(x), -most), most);

/**
 * A device's numbers, and what stays with it. update: Map of table → Map of id → row, or null if it has not trained.
 * held: what it has held back, of which the rows of this union are taken out.
 */
export function contribution(rows, update, held, behind, range) {
  const values = new Float64Array(rows.size);
  const holds = new Uint8Array(rows.size / rows.piece);
  const rest = new Map(rows.tables.map(({ name }) => [name, new Map()]));
  const extra = behind.map((x) => (update ? clipped(x, Math.max(1, range)) : 0));
  for (const { low, high, pieces, start } of rows.behind) {
    values.set(extra.slice(low, high), start);
    if (extra.slice(low, high).some((x) => x !== 0)) holds.fill(1, start / rows.piece, start / rows.piece + pieces);
  }
  const tail = rows.behind.length ? [] : extra;
  if (!update) return { values, holds, rest, extra: tail };
  for (const { name, width, start, place } of rows.tables) {
    const mine = new Map([...update.get(name)].map(([id, row]) => [id, Float64Array.from(row)]));
    for (const [id, row] of [...held.get(name)]) {
      if (!place.has(id)) continue;
      add(mine, id, row);
      held.get(name).delete(id);
    }
    const each = width / rows.piece;
    for (const [id, row] of mine) {
      const at = start + place.get(id) * width;
      row.forEach((x, i) => (values[at + i] = clipped(x, range)));
      rest.get(name).set(id, row.map((x, i) => finite(x) - values[at + i]));
      if (row.some((x) => x !== 0)) holds.fill(1, at / rows.piece, at / rows.piece + each);
    }
  }
  return { values, holds, rest, extra: tail };
}

/** Puts what was not opened, and what was cut off, back to what a device holds. sent: by piece. */
export function keepBack(rows, { values, rest }, held, sent) {
  for (const { name, width, start, place } of rows.tables) {
    for (const [id, left] of rest.get(name)) {
      const at = start + place.get(id) * width;
      const own = sent[at / rows.piece] ? left : left.map((x, i) => x + values[at + i]);
      add(held.get(name), id, own);
    }
  }
}
