// A reporter of jest: one JSON line for each test, in a file of its own. It prints nothing.
const fs = require("node:fs");
const path = require("node:path");

const root = process.env.CAPATAZ_TEST_ROOT || process.cwd();
const outcomes = { passed: "passed", failed: "failed", pending: "skipped", skipped: "skipped", todo: "xfailed", disabled: "skipped" };

module.exports = class {
  onTestResult(_test, result) {
    const folder = process.env.CAPATAZ_TEST_REPORTS;
    if (!folder) return;
    fs.mkdirSync(folder, { recursive: true });
    const file = path.relative(root, result.testFilePath);
    for (const test of result.testResults) {
      const id = [file, ...test.ancestorTitles, test.title].join(" > ");
      const line = { r: "jest", i: id, f: file, o: outcomes[test.status] || "collected" };
      fs.appendFileSync(path.join(folder, `${process.pid}-jest.jsonl`), JSON.stringify(line) + "\n");
    }
  }
};
