// Builds the browser's client into dist/: the page, one bundle, and the WebAssembly file beside it.

import { build } from "esbuild";
import { copyFileSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { constants, gzipSync } from "node:zlib";

const here = dirname(fileURLToPath(import.meta.url));
const out = join(here, "dist");
const RUNTIME = "ort-wasm-simd-threaded.wasm";
const COMPRESSED = /\.(js|css|html|wasm)$/;

rmSync(out, { recursive: true, force: true });
mkdirSync(out);
await build({
  absWorkingDir: here,
  entryPoints: ["src/device.js", "src/page.js", "src/demo.js"],
  bundle: true,
  splitting: true,
  format: "esm",
  target: "es2022",
  minify: true,
  legalComments: "linked",
  outdir: out,
  chunkNames: "shared-[hash]",
  logLevel: "warning",
});
const modules = join(here, "node_modules", "onnxruntime-web", "dist");
copyFileSync(join(modules, RUNTIME), join(out, RUNTIME));
for (const name of readdirSync(join(here, "page"))) copyFileSync(join(here, "page", name), join(out, name));
for (const name of readdirSync(out).filter((one) => COMPRESSED.test(one))) {
  const small = gzipSync(readFileSync(join(out, name)), { level: constants.Z_BEST_COMPRESSION });
  writeFileSync(join(out, `${name}.gz`), small);
}
