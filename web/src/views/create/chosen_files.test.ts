import { expect, test } from "vitest";
import { configCandidates, describeNoted, findFault, leaveOut, type CodeFile } from "./chosen_files";

function code(path: string, content = ""): CodeFile {
  return { path, file: new File([content], path.split("/").at(-1)!) };
}

async function kept(ignored: string, ...paths: string[]): Promise<string[]> {
  const files = [code(".detignore", ignored), ...paths.map((path) => code(path))];
  return (await leaveOut(files)).files.map(({ path }) => path);
}

test("a .detignore names what stays, and cannot bring back what is always left out", async () => {
  expect(await kept("data/\n*.pt\n!keep.pt\n!.git/", "train.py", "data/a.csv", "b/data/c", "x.pt", "keep.pt", ".git/config"))
    .toEqual(["train.py", "keep.pt"]);
  expect(await kept("/data\r\n# no.py\r\n", "data/a", "b/data/c", "no.py")).toEqual(["b/data/c", "no.py"]);
  expect(await kept("sub/*\n!sub/a.py", "sub/a.py", "sub/b.py")).toEqual(["sub/a.py"]);
});

test("only the .detignore at the top counts", async () => {
  const files = [code("sub/.detignore", "*.py"), code("sub/a.py")];
  expect((await leaveOut(files)).files.map(({ path }) => path)).toEqual(["sub/.detignore", "sub/a.py"]);
  expect((await leaveOut([code("__pycache__/a.pyc"), code("b.pyc"), code("c.py")])).leftOut).toBe(2);
});

test("names that are hostile or odd are names", async () => {
  const names = ["<img src=x onerror=alert(1)>.py", "../up.py", "/root.py", "a b/ü.py", "$(rm).py"];
  expect(await kept("", ...names)).toEqual(names);
});

test("what cannot be sent is said with what to do", () => {
  expect(findFault([])).toBe("There are no files to upload.");
  expect(findFault([code("a.py")])).toBe("");
  for (const name of ["\ud800.py", "a\nb.py", "a\\b.py"]) expect(findFault([code(name)])).toContain("rename the file");
  const big = { path: "data.bin", file: { size: 96 * 2 ** 20 } as File };
  expect(findFault([code("a.py"), big])).toContain("96.0 MiB, the limit is 95.0 MiB; the largest files are data.bin (96.0 MiB)");
});

test("configurations are the YAML files at the top, the likeliest first", () => {
  const files = ["b.yaml", "sub/config.yaml", "config.yml", "train.py"].map((path) => code(path));
  expect(configCandidates(files).map(({ path }) => path)).toEqual(["config.yml", "b.yaml"]);
});

test("patterns tell upper from lower case, and skip a byte order mark", async () => {
  expect(await kept("data/\n", "Data/load.py", "data/big", "Terraform_tools.py", "A.PYC")).toEqual(["Data/load.py", "Terraform_tools.py", "A.PYC"]);
  expect(await kept("\ufeffdata/\r\n", "data/big", "a.py")).toEqual(["a.py"]);
  const latin = { path: ".detignore", file: new File([new Uint8Array([0xff])], ".detignore") };
  await expect(leaveOut([latin])).rejects.toThrow("save the file as UTF-8");
});

test("names that a fixed rule leaves out are told", async () => {
  const files = ["terraform_utils.py", "shared_fs/a", "sub/shared_fs", "a.pyc"].map((path) => code(path));
  const { noted, leftOut } = await leaveOut(files);
  expect([noted, leftOut]).toEqual([["terraform_utils.py", "shared_fs/a"], 3]);
  expect(describeNoted(noted)).toContain("Not sent: terraform_utils.py, shared_fs/a.");
  expect(describeNoted([])).toBe("");
});

test("a folder that is too large is named once", () => {
  const sized = (path: string, mib: number) => ({ path, file: { size: mib * 2 ** 20 } as File });
  const fault = findFault([sized(".venv/lib/a.so", 60), sized(".venv/lib/b.so", 40), sized("data/x", 10), sized("a.py", 0)]);
  expect(fault).toContain("the largest folders are .venv/ (100.0 MiB), data/ (10.0 MiB); the largest files are .venv/lib/a.so (60.0 MiB)");
});
