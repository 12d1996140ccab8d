// Reads cases as JSON from standard input, and writes what this client's counters and batches give for them.

import { readFileSync } from "node:fs";
import { lookUp, positions, stepsOf } from "../src/batches.js";
import { below, bits, clientKey, counter, key } from "../src/counters.js";

const { draws, rounds } = JSON.parse(readFileSync(0, "utf8"));

function draw({ seed, use, round, client, step, position, limit }) {
  const random = bits(clientKey(seed, use, round, client), counter(step, position));
  return { key: String(key(seed, use, round)), random: String(random), below: below(random, limit) };
}

function column({ values, ...more }) {
  return { values: Int32Array.from(values), ...more };
}

function round({ size, plan, number, client, columns }) {
  const steps = [];
  for (const batch of positions(size, plan, number, client)) {
    const read = Object.fromEntries(
      Object.entries(columns).map(([name, one]) => {
        const { values, shape } = lookUp(column(one), batch.positions);
        return [name, { values: [...values], shape }];
      }),
    );
    steps.push({ key: String(batch.key), real: batch.real && [...batch.real], read });
  }
  return { steps, counted: stepsOf(size, plan) };
}

console.log(JSON.stringify({ draws: draws.map(draw), rounds: rounds.map(round) }));
