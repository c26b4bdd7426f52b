import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { brotliCompressSync, constants, gzipSync } from "node:zlib";
import { defineConfig, type Plugin } from "vite";

const BUILT = "../control_plane/page/built";

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
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    sourcemap: false,
    // One file, which the document names: a view that comes later would wait for its own.
    cssCodeSplit: false,
    rollupOptions: { output: { hashCharacters: "hex" } },
  },
  plugins: [compressFiles()],
});
