// What a device keeps between two rounds of a run: personal rows, and what the algorithm keeps, under the
// tag of the try that made them. Only what the gateway has accepted is gone on from.

/** What was kept under the accepted tag, if anything, and the names of all other tries. */
export async function recall(storage, { run, accepted }) {
  const name = `memory/${run}/${accepted}`;
  const all = (await storage.names()).filter((one) => one.startsWith(`memory/${run}/`));
  return { before: await storage.get(name), past: all.filter((one) => one !== name) };
}

/** What to keep of a result, as things for the storage; other tries are forgotten.
 *
 * Of a result that is not finite nothing is kept: no round would get such numbers out of it again.
 */
export function remembered({ run, tag }, past, manifest, index, result) {
  const local = Object.entries(manifest.tables).filter(([, facts]) => facts.local);
  const personal = local.map(([table]) => [table, { ids: index[table], rows: result.rows[table] }]);
  if (!personal.every(([, { rows }]) => isFinite(rows)) || !isFiniteSubmodel(result.kept)) return {};
  return {
    ...Object.fromEntries(past.map((name) => [name, undefined])),
    [`memory/${run}/${tag}`]: { rows: Object.fromEntries(personal), kept: result.kept },
  };
}

const isFinite = (numbers) => numbers.every((x) => Number.isFinite(x));

function isFiniteSubmodel(submodel) {
  return Object.values(submodel ?? {}).every((part) => Object.values(part).every(isFinite));
}
