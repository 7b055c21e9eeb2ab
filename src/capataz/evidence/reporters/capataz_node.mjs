// A reporter of node's own test runner: one JSON line for each test that ended, in a file of its own. It prints nothing.
import fs from "node:fs";
import path from "node:path";

const folder = process.env.CAPATAZ_TEST_REPORTS;
const root = process.env.CAPATAZ_TEST_ROOT || process.cwd();

function relative(file) {
  if (!file) return null;
  const found = path.relative(root, file.startsWith("file:") ? new URL(file).pathname : file);
  return found.startsWith("..") ? null : found;
}

function outcome(type, data) {
  if (data.skip !== undefined && data.skip !== false) return "skipped";
  if (data.todo !== undefined && data.todo !== false) return "xfailed";
  return type === "test:pass" ? "passed" : "failed";
}

function write(line) {
  if (!folder) return;
  fs.mkdirSync(folder, { recursive: true });
  fs.appendFileSync(path.join(folder, `${process.pid}-node.jsonl`), JSON.stringify(line) + "\n");
}

export default async function* report(source) {
  const names = [];
  for await (const { type, data } of source) {
    if (type === "test:start") {
      names.length = data.nesting;
      names[data.nesting] = data.name;
    } else if (type === "test:pass" || type === "test:fail") {
      const file = relative(data.file);
      const name = relative(data.name) && path.isAbsolute(data.name) ? relative(data.name) : data.name;
      const id = [file ?? "", ...names.slice(0, data.nesting), name].join(" > ");
      write({ r: "node", i: id, f: file, o: outcome(type, data) });
    }
  }
  yield "";
}
