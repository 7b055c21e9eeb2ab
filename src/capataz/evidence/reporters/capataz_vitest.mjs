// A reporter of vitest: one JSON line for each test, in a file of its own. It prints nothing.
import fs from "node:fs";
import path from "node:path";

const root = process.env.CAPATAZ_TEST_ROOT || process.cwd();
const folder = process.env.CAPATAZ_TEST_REPORTS;
const outcomes = { pass: "passed", passed: "passed", fail: "failed", failed: "failed", skip: "skipped", skipped: "skipped", todo: "xfailed" };

function write(file, names, outcome) {
  const line = { r: "vitest", i: [file, ...names].join(" > "), f: file, o: outcome };
  fs.mkdirSync(folder, { recursive: true });
  fs.appendFileSync(path.join(folder, `${process.pid}-vitest.jsonl`), JSON.stringify(line) + "\n");
}

function walk(file, task, names) {
  for (const child of task.tasks ?? []) {
    const path_ = [...names, child.name];
    if (child.type === "suite") walk(file, child, path_);
    else write(file, path_, outcomes[child.result?.state ?? child.mode] ?? "collected");
  }
}

export default class {
  // vitest 1 and 2
  onFinished(files) {
    if (folder) for (const file of files ?? []) walk(path.relative(root, file.filepath), file, []);
  }

  // vitest 3 and newer
  onTestRunEnd(modules) {
    if (!folder) return;
    for (const module of modules) {
      for (const test of module.children.allTests()) {
        const file = path.relative(root, module.moduleId);
        write(file, test.fullName.split(" > "), outcomes[test.result()?.state] ?? "collected");
      }
    }
  }
}
