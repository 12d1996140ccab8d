// Messages between a device and its gateway, as docs/device-protocol.md has them. All numbers are little-endian.
//
//   FROW · version · lengths · kind · facts (JSON) · parts (a name and bytes each)

import { DeviceError } from "./errors.js";

const VERSION = 1;
const HEADER = 13; // bytes: FROW, version, bytes of the kind, parts, bytes of the facts
const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", { fatal: true });
// Whole numbers of up to 64 bits, which JSON.parse would round: they are kept as text.
const LONG = /"(tag|accepted|run)":\s*(-?\d+)/g;

/** A message as bytes; facts: JSON text, parts: {name: Uint8Array}. */
export function pack(kind, facts, parts) {
  const head = new DataView(new ArrayBuffer(HEADER));
  const [kindBytes, factBytes] = [kind, facts].map((text) => encoder.encode(text));
  const named = Object.entries(parts);
  "FROW".split("").forEach((letter, i) => head.setUint8(i, letter.charCodeAt(0)));
  head.setUint16(4, VERSION, true);
  head.setUint8(6, kindBytes.length);
  head.setUint16(7, named.length, true);
  head.setUint32(9, factBytes.length, true);
  const blocks = [new Uint8Array(head.buffer), kindBytes, factBytes];
  for (const [name, part] of named) {
    const label = encoder.encode(name);
    const lengths = new DataView(new ArrayBuffer(5));
    lengths.setUint8(0, label.length);
    lengths.setUint32(1, part.length, true);
    blocks.push(new Uint8Array(lengths.buffer), label, part);
  }
  return joined(blocks);
}

/** The message behind some bytes: {kind, facts, parts}. */
export function unpack(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  let at = 0;
  const take = (size) => {
    if (at + size > bytes.length) throw new DeviceError("A message of the gateway was cut off: try again.");
    at += size;
    return bytes.subarray(at - size, at);
  };
  take(HEADER);
  if (decoder.decode(bytes.subarray(0, 4)) !== "FROW" || view.getUint16(4, true) !== VERSION) {
    throw new DeviceError("The gateway sent something other than a message of version 1: reload this page.");
  }
  const kind = decoder.decode(take(view.getUint8(6)));
  const text = decoder.decode(take(view.getUint32(9, true)));
  const parts = {};
  for (let i = view.getUint16(7, true); i > 0; i--) {
    const lengths = at;
    take(5);
    const name = decoder.decode(take(view.getUint8(lengths)));
    parts[name] = take(view.getUint32(lengths + 1, true));
  }
  return { kind, facts: JSON.parse(text.replace(LONG, '"$1":"$2"')), parts };
}

/** Sorted, distinct ids as the gaps between them, each a LEB128 varint. */
export function idsToBytes(ids) {
  const bytes = [];
  let last = -1;
  for (const id of ids) {
    let gap = id - last - 1;
    for (last = id; gap >= 128; gap = Math.floor(gap / 128)) bytes.push((gap % 128) + 128);
    bytes.push(gap);
  }
  return Uint8Array.from(bytes);
}

/** The ids behind some bytes. */
export function idsFromBytes(bytes) {
  const ids = [];
  let [last, gap, scale] = [-1, 0, 1];
  for (const byte of bytes) {
    gap += (byte % 128) * scale;
    scale *= 128;
    if (byte < 128) {
      ids.push((last += gap + 1));
      [gap, scale] = [0, 1];
    }
  }
  return ids;
}

/** Numbers as bytes; every machine that has a browser is little-endian. */
export function numbersToBytes(numbers) {
  return new Uint8Array(numbers.buffer, numbers.byteOffset, numbers.byteLength).slice();
}

/** The numbers behind some bytes, which must be `count`. */
export function numbersFromBytes(bytes, count, name) {
  if (!bytes || bytes.length !== 4 * count) {
    throw new DeviceError(`The gateway sent ${bytes?.length ?? 0} bytes of ${name}, not ${4 * count}: reload this page.`);
  }
  const numbers = new Float32Array(bytes.slice().buffer);
  if (!numbers.every((x) => Number.isFinite(x))) {
    throw new DeviceError(`The gateway sent a number of ${name} that is not finite: nothing is trained on it.`);
  }
  return numbers;
}

/** Rows of R that lie in the parts, with zeros where none were sent: (R × width). */
export function rowsFromParts(parts, name, count, width) {
  const at = parts[`${name}/at`];
  if (!at) return numbersFromBytes(parts[name], count * width, name);
  const places = idsFromBytes(at);
  const sent = numbersFromBytes(parts[name], places.length * width, name);
  const rows = new Float32Array(count * width);
  if (places.length && places.at(-1) >= count) throw new DeviceError(`The gateway sent rows of ${name} that this device lacks.`);
  places.forEach((place, i) => rows.set(sent.subarray(i * width, (i + 1) * width), place * width));
  return rows;
}

/** Rows as parts; those that are all zero are left out. */
export function rowsToParts(name, rows, width) {
  const count = rows.length / width;
  const places = [];
  for (let i = 0; i < count; i++) {
    if (rows.subarray(i * width, (i + 1) * width).some((x) => x !== 0)) places.push(i);
  }
  if (places.length === count) return { [name]: numbersToBytes(rows) };
  const sent = new Float32Array(places.length * width);
  places.forEach((place, i) => sent.set(rows.subarray(place * width, (place + 1) * width), i * width));
  return { [`${name}/at`]: idsToBytes(places), [name]: numbersToBytes(sent) };
}

/** One bit for every row, the first in the highest bit of the first byte. */
export function bitsToBytes(marks) {
  const bytes = new Uint8Array(Math.ceil(marks.length / 8));
  marks.forEach((mark, i) => {
    if (mark) bytes[i >> 3] |= 128 >> (i & 7);
  });
  return bytes;
}

/** Some blocks of bytes as one. */
export function joined(blocks) {
  const all = new Uint8Array(blocks.reduce((sum, block) => sum + block.length, 0));
  let at = 0;
  for (const block of blocks) {
    all.set(block, at);
    at += block.length;
  }
  return all;
}
