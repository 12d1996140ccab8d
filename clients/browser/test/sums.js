// Plays devices in secure sums for the Python tests: lines of JSON in, lines of JSON out; bytes are hexadecimal.
//
//   {"make": "vectors", …}           what single primitives give
//   {"begin": NAME, …}, {"ask": …}   a whole client half, whose secrets are drawn from a seed

import { createInterface } from "node:readline";
import { encode, marks } from "../src/private/fixed_point.js";
import * as keys from "../src/private/keys.js";
import { Openings } from "../src/private/openings.js";
import { SumSession } from "../src/private/sum_session.js";
import { SumTerms } from "../src/private/terms.js";
import { share } from "../src/private/shamir.js";
import { SumHalf } from "../src/private/sum_half.js";

const hex = (bytes) => Buffer.from(bytes).toString("hex");
const bytes = (text) => new Uint8Array(Buffer.from(text, "hex"));
const halves = new Map();

/** A source of secrets: the stream of a seed, all of which is made beforehand. */
async function drawing(seed) {
  const all = await keys.stream(bytes(seed), 2 ** 20, Uint8Array);
  let at = 0;
  return (count) => all.slice(at, (at += count));
}

const MAKE = {
  async digest({ parts }) {
    return hex(await keys.digest(...parts.map(bytes)));
  },
  async derive({ secret, info }) {
    return hex(await keys.derive(bytes(secret), bytes(info)));
  },
  async agree({ secret, other, info }) {
    const own = await keys.AgreementKey.of(bytes(secret));
    const key = await own.agree(bytes(other), bytes(info));
    return [hex(own.public), key && hex(key)];
  },
  async sign({ secret, data }) {
    const key = await keys.SigningKey.of(bytes(secret));
    return [hex(key.public), hex(await key.sign(bytes(data)))];
  },
  async verify({ key, signature, data }) {
    return keys.signedBy(bytes(key), bytes(signature), bytes(data));
  },
  async stream({ key, count, bits }) {
    const words = await keys.stream(bytes(key), count, bits === 32 ? Uint32Array : BigUint64Array);
    return hex(new Uint8Array(words.buffer));
  },
  async seal({ key, content, about, seed }) {
    return hex(await keys.seal(bytes(key), bytes(content), bytes(about), await drawing(seed)));
  },
  async unseal({ key, box, about }) {
    const content = await keys.unseal(bytes(key), bytes(box), bytes(about));
    return content && hex(content);
  },
  async share({ secret, threshold, holders, seed }) {
    return [...share(bytes(secret), threshold, holders, await drawing(seed)).values()].map(hex);
  },
  async encode({ numbers, coding, seed }) {
    return hex(new Uint8Array((await encode(Float64Array.from(numbers), coding, await drawing(seed))).buffer));
  },
  async marks({ places, count, seed }) {
    return hex(new Uint8Array((await marks(places, count, await drawing(seed))).buffer));
  },
  async open({ plan, counts }) {
    return [...new Openings(plan).mayOpen(Uint8Array.from(counts))];
  },
};

async function begin({ terms, plan, me, secret, registry, seed, vector, values, holds, extra }) {
  const random = seed ? await drawing(seed) : keys.fresh;
  const openings = plan ? new Openings(plan) : null;
  const Words = terms.word === "uint64" ? BigUint64Array : Uint32Array;
  const words = (text) => new Words(bytes(text).buffer);
  const agreed = await SumTerms.of(openings ? { ...terms, length: openings.length, about: await openings.about() } : terms);
  const known = new Map(Object.entries(registry).map(([one, key]) => [Number(one), bytes(key)]));
  const node = await keys.SigningKey.of(bytes(secret));
  const part = openings
    ? (session) => openings.vector(session, words(values), Uint8Array.from(holds), words(extra))
    : () => words(vector);
  return new SumHalf(agreed, me, node, known, part, openings, random);
}

for await (const line of createInterface({ input: process.stdin })) {
  const asked = JSON.parse(line);
  let answer;
  try {
    if (asked.make) answer = { made: await MAKE[asked.make](asked) };
    else if (asked.begin) {
      halves.set(asked.begin, await begin(asked));
      answer = {};
    } else {
      const half = halves.get(asked.ask);
      const reply = await half.reply(asked.phase, bytes(asked.request));
      answer = { reply: reply && hex(reply), sent: half.sent && [...half.sent] };
    }
  } catch (error) {
    answer = { error: error.name === "DeviceError" ? error.message : String(error.stack) };
  }
  console.log(JSON.stringify(answer));
}
