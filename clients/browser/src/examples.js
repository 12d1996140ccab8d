// A device's own examples as columns, the rows that they need, and where those lie.
//
// What an app gives:  {ids: {field: [id | [id, …], …]}, label: […], numbers?: {field: […]}, weight?: […],
//                      also?: {table: [id, …]}}
// `also` names rows that no example reads but that the device wants to have, such as films to rank.

import { DataError } from "./errors.js";

/** The sorted ids of every table that a device needs: {table: Int32Array}. */
export function indexOf(given, manifest) {
  check(given, manifest);
  const index = {};
  for (const [table, facts] of Object.entries(manifest.tables)) {
    const fields = Object.entries(manifest.fields).filter(([, field]) => field.table === table);
    const ids = new Set(given.also?.[table] ?? []);
    for (const [name] of fields) for (const id of given.ids[name].flat()) ids.add(id);
    if (facts.padded) ids.delete(0); // id 0 means "nothing here"
    index[table] = Int32Array.from(ids).sort();
    if (index[table].length && (index[table][0] < 0 || index[table].at(-1) >= facts.rows)) {
      throw new DataError(`The data have ids of ${table} outside of its ${facts.rows} rows: encode them as the program says.`);
    }
  }
  return index;
}

/** Fails unless the data have what the program reads, once for each example. */
function check(given, manifest) {
  const size = given.label?.length;
  if (!size || !given.label.every((x) => Number.isFinite(x))) {
    throw new DataError("The data need at least one example, and a number as the label of each.");
  }
  const columns = [...Object.keys(manifest.fields).map((name) => ["ids", name]), ...Object.keys(manifest.numbers ?? {}).map((name) => ["numbers", name])];
  for (const [kind, name] of columns) {
    const entries = given[kind]?.[name];
    if (!Array.isArray(entries) || entries.length !== size) {
      throw new DataError(`The data have ${entries?.length ?? 0} entries of ${name} and ${size} labels: they must be as many.`);
    }
    const is = kind === "ids" ? (x) => Number.isSafeInteger(x) : (x) => Number.isFinite(x);
    const odd = entries.flat().find((x) => !is(x));
    if (odd !== undefined) throw new DataError(`The data have the entry ${JSON.stringify(odd)} of ${name}, which takes ${kind === "ids" ? "whole numbers" : "numbers"} only.`);
  }
}

/** The examples as columns of slots, which are places in the index; −1 means "nothing here". */
export function columnsOf(given, manifest, index) {
  const size = given.label.length;
  const slots = {};
  for (const [name, field] of Object.entries(manifest.fields)) {
    const ids = given.ids[name];
    if (ids?.length !== size) {
      throw new DataError(`The data have ${ids?.length ?? 0} entries of ${name} and ${size} labels: they must be as many.`);
    }
    const place = new Map(Array.from(index[field.table], (id, slot) => [id, slot]));
    slots[name] = column(ids, (id) => place.get(id) ?? -1, Int32Array, field.length);
  }
  const numbers = {};
  for (const [name, values] of Object.entries(given.numbers ?? {})) {
    numbers[name] = column(values, (x) => x, Float32Array);
  }
  return { size, slots, numbers, label: Float32Array.from(given.label), weight: given.weight ? Float32Array.from(given.weight) : null };
}

/** A column of numbers, of rows that are equally wide, or of lists that are at most `length` long. */
function column(entries, of, Values, length) {
  if (!Array.isArray(entries[0])) return { values: Values.from(entries, of), width: 1, wide: false };
  if (length !== undefined) entries = entries.map((entry) => entry.slice(-length)); // the last so many
  const flat = Values.from(entries.flat(), of);
  const sizes = entries.map((entry) => entry.length);
  if (length === undefined && sizes.every((size) => size === sizes[0])) {
    return { values: flat, width: sizes[0], wide: true };
  }
  const offsets = new Int32Array(entries.length + 1);
  sizes.forEach((size, i) => (offsets[i + 1] = offsets[i] + size));
  return { values: flat, offsets, length: length ?? Math.max(1, ...sizes) };
}
