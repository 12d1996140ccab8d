// What an algorithm computes from a finished round: what it returns besides the update, and what it keeps.
//
// The manifest has each of them as a sum of update, sent and kept, times factors: Scaffold's control variate
// changes by −update / (steps · lr) − sent.

import { lookUp, positions } from "./batches.js";
import { DeviceError } from "./errors.js";

/** {returns: {name: submodel}, kept: submodel or null}. */
export function finished(manifest, given, end, steps) {
  const { keeps, algorithm: { extra, kept } } = manifest;
  const sources = { sent: given.sent, kept: given.kept };
  sources.update = shared(manifest, end, (x, i, kind, name) => x - given[kind][name][i]);
  const sum = (factors) =>
    shared(manifest, end, (_, i, kind, name) => {
      let total = 0;
      for (const [source, factor] of Object.entries(factors)) {
        const value = sources[source]?.[kind]?.[name]?.[i] ?? 0; // nothing was kept before the first round
        total += value * factorOf(factor, steps, given.lr);
      }
      return total;
    });
  const returns = Object.fromEntries(Object.entries(extra).map(([name, factors]) => [name, sum(factors)]));
  return { returns, kept: keeps ? sum(kept) : null };
}

function factorOf(factor, steps, lr) {
  if (typeof factor === "number") return factor;
  if (factor === "-1/(steps*lr)") return -1 / (steps * lr);
  throw new DeviceError(`The program asks for the factor ${factor}, which this page does not know: reload this page.`);
}

/** A submodel of the shared tables and the dense tensors, number by number. */
function shared(manifest, like, of) {
  const made = { rows: {}, dense: {} };
  for (const [name, { local }] of Object.entries(manifest.tables)) {
    if (!local) made.rows[name] = like.rows[name].map((x, i) => of(x, i, "rows", name));
  }
  for (const name of Object.keys(manifest.dense)) {
    made.dense[name] = like.dense[name].map((x, i) => of(x, i, "dense", name));
  }
  return made;
}

/** Whether each row of the shared tables occurs in the round's batches, as fedrows/data/occurrences.py has it. */
export function occurrences(manifest, { examples, index, round, number }) {
  const tables = Object.entries(manifest.tables).filter(([, { local }]) => !local);
  const marks = Object.fromEntries(tables.map(([table]) => [table, new Uint8Array(index[table].length)]));
  for (const batch of positions(examples.size, manifest.plan, round, number)) {
    const counts = (position, i) => (batch.real?.[i] ?? 1) * (examples.weight?.[position] ?? 1) > 0;
    const at = batch.positions.filter(counts);
    for (const [name, { table }] of Object.entries(manifest.fields)) {
      if (!marks[table]) continue;
      for (const slot of lookUp(examples.slots[name], at).values) if (slot >= 0) marks[table][slot] = 1;
    }
  }
  return marks;
}
