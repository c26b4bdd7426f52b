import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { brotliCompressSync, constants, gzipSync } from "node:zlib";
import { defineConfig, type Plugin } from "vite";
import { lightenUplot } from "./lighter_uplot.ts";

const BUILT = "../control_plane/page/built";

// One file compresses better than many small ones, and a view waits for fewer answers.
const SHARED = { name: "shared", test: /\/src\/(?:api|live|parts|shell|curves\/palette)/, minShareCount: 3 };

/** Write the compressed forms that the server sends beside each file. */
function compressFiles(): Plugin {
  return {
    name: "compress-files",
    apply: "build",
    closeBundle() {
      for (const entry of readdirSync(BUILT, { recursive: true, withFileTypes: true })) {
        if (!entry.isFile() || !/\.(html|js|css|svg)$/.test(entry.name)) continue;
        const file = join(entry.parentPath, entry.name);
        const content = readFileSync(file);
        const quality = { params: { [constants.BROTLI_PARAM_QUALITY]: 11 } };
        writeFileSync(`${file}.br`, brotliCompressSync(content, quality));
        writeFileSync(`${file}.gz`, gzipSync(content, { level: 9 }));
      }
    },
  };
}

export default defineConfig({
  base: "./",
  build: {
    outDir: BUILT,
    emptyOutDir: true,
    target: "es2022",
    // The first browsers with `light-dark()`, which would be written out for others.
    cssTarget: ["chrome123", "firefox120", "safari17.5"],
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    sourcemap: false,
    // One file, which the document names: a view that comes later would wait for its own.
    cssCodeSplit: false,
    rollupOptions: { output: { hashCharacters: "hex", codeSplitting: { groups: [SHARED] } } },
  },
  // Calls with arguments are shorter than the calls of "automatic", which have an object for each element.
  oxc: { jsx: { runtime: "classic", pragma: "h", pragmaFrag: "Fragment" }, jsxInject: 'import { h, Fragment } from "preact";' },
  plugins: [lightenUplot(), compressFiles()],
});
