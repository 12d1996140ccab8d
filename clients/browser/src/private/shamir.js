// Shamir's sharing over the prime 2^256 + 297, as fedrows/privacy/shamir.py does it.

export const SHARE = 33; // bytes
const PRIME = 2n ** 256n + 297n;
const SPARE = 7n; // bits that 33 bytes have too many

/** A number from little-endian bytes. */
export function numberOf(bytes) {
  return bytes.reduceRight((number, byte) => (number << 8n) | BigInt(byte), 0n);
}

/** A number as so many little-endian bytes. */
export function bytesOf(number, size) {
  const bytes = new Uint8Array(size);
  for (let i = 0; i < size; i++, number >>= 8n) bytes[i] = Number(number & 255n);
  return bytes;
}

/** A number below the prime, each as likely as the other. */
function below(random) {
  for (;;) {
    const number = numberOf(random(SHARE)) >> SPARE;
    if (number < PRIME) return number;
  }
}

/** A share of a secret of 32 bytes for every holder: a Map of 33 bytes each. */
export function share(secret, threshold, holders, random) {
  const factors = Array.from({ length: threshold - 1 }, () => below(random));
  const last = numberOf(secret);
  return new Map(
    holders.map((holder) => {
      const x = BigInt(holder + 1);
      const value = factors.reduce((sum, factor) => ((sum + factor) * x) % PRIME, 0n);
      return [holder, bytesOf((value + last) % PRIME, SHARE)];
    }),
  );
}
