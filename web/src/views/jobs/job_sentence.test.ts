import { expect, test } from "vitest";
import { jobSentence, sentencePeriodMs } from "./job_sentence";
import examples from "./job_sentences.json";

// The command line has the same examples.
test.each(examples.map(({ case: name, job, sentence }) => [name, job, sentence] as const))("%s", (_, job, sentence) => {
  expect(jobSentence(job as Parameters<typeof jobSentence>[0], 1_000_000)).toBe(sentence);
});

test("a sentence is renewed each second as long as it shows seconds", () => {
  const job = { ...examples[0]!.job, condition: "queued" as const };
  expect(sentencePeriodMs(job, 1_000_000)).toBe(1_000);
  expect(sentencePeriodMs({ ...job, expected_start_ms: null }, 280_000 + 3_600_000)).toBe(60_000);
  expect(sentencePeriodMs({ ...job, expected_start_ms: null, waits_since_ms: null }, 0)).toBe(60_000);
});
