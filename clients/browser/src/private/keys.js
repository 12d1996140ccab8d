// Keys of secure sums, by WebCrypto alone: fedrows/privacy/keys.py and messages.py, byte for byte.
//
//   X25519 agreement, HKDF-SHA256, AES-256-CTR streams, AES-256-GCM boxes, Ed25519 signatures
//
// Every secret begins with crypto.getRandomValues. `fresh` is handed in, so that a test can repeat it.

import { DeviceError } from "../errors.js";
import { joined } from "../wire.js";

export const KEY = 32; // bytes
export const SIGNATURE = 64;
const NONCE = 12;
const MOST_RANDOM = 65536; // bytes that a browser gives at a time
const encoder = new TextEncoder();

// What comes before the 32 bytes of a private key in its PKCS #8 form, but for the curve.
const HEAD = { X25519: 0x6e, Ed25519: 0x70 };
const pkcs8 = (curve, secret) =>
  joined([Uint8Array.of(0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, HEAD[curve], 4, 0x22, 4, 0x20), secret]);

/** Bytes that nobody else can know. */
export function fresh(count) {
  const bytes = new Uint8Array(count);
  for (let at = 0; at < count; at += MOST_RANDOM) crypto.getRandomValues(bytes.subarray(at, at + MOST_RANDOM));
  return bytes;
}

export function text(string) {
  return encoder.encode(string);
}

export function same(one, other) {
  return one.length === other.length && one.every((byte, i) => byte === other[i]);
}

/** A whole number in 8 bytes. */
export function eight(number) {
  const bytes = new Uint8Array(8);
  new DataView(bytes.buffer).setBigUint64(0, BigInt(number), true);
  return bytes;
}

/** SHA-256 of some parts, each with its length in front. */
export async function digest(...parts) {
  return new Uint8Array(await crypto.subtle.digest("SHA-256", joined(parts.flatMap((part) => [eight(part.length), part]))));
}

/** A key for one purpose out of a secret. */
export async function derive(secret, info) {
  const key = await crypto.subtle.importKey("raw", secret, "HKDF", false, ["deriveBits"]);
  const how = { name: "HKDF", hash: "SHA-256", salt: new Uint8Array(0), info };
  return new Uint8Array(await crypto.subtle.deriveBits(how, key, 8 * KEY));
}

/** A private key, and its public half as bytes. */
async function keyPair(curve, secret, use) {
  const key = await crypto.subtle.importKey("pkcs8", pkcs8(curve, secret), curve, true, [use]);
  const { x } = await crypto.subtle.exportKey("jwk", key);
  const letters = atob(x.replaceAll("-", "+").replaceAll("_", "/"));
  return { key, public: Uint8Array.from(letters, (letter) => letter.charCodeAt(0)) };
}

/** An X25519 key of one sum. */
export class AgreementKey {
  static async of(secret) {
    return Object.assign(new AgreementKey(), { secret, ...(await keyPair("X25519", secret, "deriveBits")) });
  }

  /** The key shared with the owner of a public half; null if every secret would give the same one. */
  async agree(other, info) {
    let shared;
    try {
      const half = await crypto.subtle.importKey("raw", other, "X25519", true, []);
      shared = new Uint8Array(await crypto.subtle.deriveBits({ name: "X25519", public: half }, this.key, 8 * KEY));
    } catch {
      return null;
    }
    if (!shared.some((byte) => byte)) return null;
    const halves = [this.public, other].sort((a, b) => before(a, b));
    return derive(shared, joined([...halves, info]));
  }
}

/** The device's own Ed25519 key; one that was made here can sign and cannot be read. */
export class SigningKey {
  constructor(key, publicHalf) {
    this.key = key;
    this.public = publicHalf;
  }

  static async make() {
    let pair;
    try {
      pair = await crypto.subtle.generateKey("Ed25519", false, ["sign", "verify"]);
      await crypto.subtle.generateKey("X25519", false, ["deriveBits"]);
    } catch (error) {
      throw new DeviceError("This browser has no Ed25519 and X25519 keys, which private runs need: use a newer one.", error);
    }
    return new SigningKey(pair.privateKey, new Uint8Array(await crypto.subtle.exportKey("raw", pair.publicKey)));
  }

  static async of(secret) {
    const pair = await keyPair("Ed25519", secret, "sign");
    return new SigningKey(pair.key, pair.public);
  }

  async sign(data) {
    return new Uint8Array(await crypto.subtle.sign("Ed25519", this.key, data));
  }
}

/** Whether a signature of some bytes is that of the key's owner. */
export async function signedBy(publicHalf, signature, data) {
  try {
    const key = await crypto.subtle.importKey("raw", publicHalf, "Ed25519", true, ["verify"]);
    return await crypto.subtle.verify("Ed25519", key, signature, data);
  } catch {
    return false;
  }
}

/** A box that only the key opens, and only together with the same `about`. */
export async function seal(key, content, about, random) {
  const iv = random(NONCE);
  const aes = await crypto.subtle.importKey("raw", key, "AES-GCM", false, ["encrypt"]);
  return joined([iv, new Uint8Array(await crypto.subtle.encrypt({ name: "AES-GCM", iv, additionalData: about }, aes, content))]);
}

/** What is in a box; null if the box, the key or what it is about is another. */
export async function unseal(key, box, about) {
  try {
    const aes = await crypto.subtle.importKey("raw", key, "AES-GCM", false, ["decrypt"]);
    const how = { name: "AES-GCM", iv: box.slice(0, NONCE), additionalData: about };
    return new Uint8Array(await crypto.subtle.decrypt(how, aes, box.slice(NONCE)));
  } catch {
    return null;
  }
}

/** The first words of a key's stream. */
export async function stream(key, count, Words) {
  const aes = await crypto.subtle.importKey("raw", key, "AES-CTR", false, ["encrypt"]);
  const how = { name: "AES-CTR", counter: new Uint8Array(16), length: 128 };
  return new Words(await crypto.subtle.encrypt(how, aes, new Uint8Array(count * Words.BYTES_PER_ELEMENT)));
}

/** Adds a key's stream to words, or takes it off; both wrap around, as the ring does. */
export async function addStream(words, key, minus = false) {
  const made = await stream(key, words.length, words.constructor);
  if (minus) for (let i = 0; i < words.length; i++) words[i] -= made[i];
  else for (let i = 0; i < words.length; i++) words[i] += made[i];
}

/** Some parts as one message, each with its length in 4 bytes in front. */
export function packParts(...parts) {
  const size = (part) => new Uint8Array(Uint32Array.of(part.length).buffer);
  return joined(parts.flatMap((part) => [size(part), part]));
}

/** The parts of a message; null if they are cut short. */
export function unpackParts(data) {
  const parts = [];
  const view = new DataView(data.buffer, data.byteOffset, data.byteLength);
  for (let at = 0; at < data.length; ) {
    const size = at + 4 <= data.length ? view.getUint32(at, true) : Infinity;
    at += 4;
    if (at + size > data.length) return null;
    parts.push(data.slice(at, at + size));
    at += size;
  }
  return parts;
}

/** Numbers as 8 bytes each. */
export function packIds(ids) {
  return new Uint8Array(BigUint64Array.from(ids, BigInt).buffer);
}

/** Rising numbers behind their bytes; null if they are anything else. */
export function unpackIds(data) {
  if (data.length % 8) return null;
  const ids = Array.from(new BigUint64Array(data.slice().buffer), Number);
  return ids.every((id, i) => Number.isSafeInteger(id) && (i === 0 || ids[i - 1] < id)) ? ids : null;
}

/** Whether bytes come before others, as Python sorts them: below 0 if so. */
export function before(one, other) {
  const at = one.findIndex((byte, i) => byte !== other[i]);
  return at < 0 ? 0 : one[at] - other[at];
}
