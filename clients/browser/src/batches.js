// The order in which a device sees its own examples: the same batches as fedrows/data/batches.py.
//
// Examples lie in columns, one entry per example:
//   {values, width}            `width` numbers each (1: a number; more: a row of them)
//   {values, offsets, length}  a list each, filled up to `length` with −1, which means "nothing here"

import { BATCH, SHUFFLE, STEP, below, bits, clientKey, counter } from "./counters.js";

/** How many steps a device with so many examples takes in a round. */
export function stepsOf(size, plan) {
  if (plan.batches === "draw") return plan.local_steps;
  return Math.ceil(size / plan.batch_size) * plan.epochs;
}

/** Which examples each step of a round reads: {positions, real, key}.
 *
 * real: 1 for an example, 0 where a short batch is filled up with the device's first one; null means
 * that all are real. key: of the step's own randomness, such as dropout.
 */
export function* positions(size, plan, round, client) {
  if (!size) return;
  const steps = clientKey(plan.seed, STEP, round, client);
  const draws = plan.batches === "draw" ? drawn(size, plan, round, client) : shuffled(size, plan, round, client);
  let step = 0;
  for (const batch of draws) yield { ...batch, key: BigInt.asIntN(64, bits(steps, step++)) };
}

function* drawn(size, plan, round, client) {
  const stream = clientKey(plan.seed, BATCH, round, client);
  for (let step = 0; step < plan.local_steps; step++) {
    const batch = new Int32Array(plan.batch_size);
    for (let i = 0; i < batch.length; i++) batch[i] = below(bits(stream, counter(step, i)), size);
    yield { positions: batch, real: null };
  }
}

function* shuffled(size, plan, round, client) {
  const stream = clientKey(plan.seed, SHUFFLE, round, client);
  for (let epoch = 0; epoch < plan.epochs; epoch++) {
    const order = shuffle(size, stream, epoch);
    for (let first = 0; first < size; first += plan.batch_size) {
      const batch = new Int32Array(plan.batch_size).fill(order[0]);
      const real = new Float32Array(plan.batch_size);
      const some = order.subarray(first, first + plan.batch_size);
      batch.set(some);
      real.fill(1, 0, some.length);
      yield { positions: batch, real };
    }
  }
}

/** A random order of the examples for one pass. */
function shuffle(size, stream, epoch) {
  const random = new BigInt64Array(size); // signed, as PyTorch sorts them
  for (let i = 0; i < size; i++) random[i] = bits(stream, counter(epoch, i));
  const order = Int32Array.from(random, (_, i) => i);
  return order.sort((a, b) => (random[a] < random[b] ? -1 : random[a] > random[b] ? 1 : a - b));
}

/** What a column has at some positions, one after another: {values, shape}. */
export function lookUp(column, at) {
  const Values = column.values.constructor;
  if (column.offsets) return filled(column, at);
  const { width } = column;
  const values = new Values(at.length * width);
  at.forEach((position, i) => {
    values.set(column.values.subarray(position * width, (position + 1) * width), i * width);
  });
  return { values, shape: column.wide ? [at.length, width] : [at.length] };
}

function filled(column, at) {
  const { offsets, length } = column;
  const values = new column.values.constructor(at.length * length).fill(-1);
  at.forEach((position, i) => {
    values.set(column.values.subarray(offsets[position], offsets[position + 1]), i * length);
  });
  return { values, shape: [at.length, length] };
}
