import { describe, expect, it } from "vitest";

import type { Schemas } from "../../api/client";
import { deviceText } from "./agent_list";

type Slot = Schemas["SlotView"];

function slot(name: string, memory_mib: number | null): Slot {
  return { id: 0, type: "cuda", uuid: "GPU-a", name, allocation: null, allocations: [], enabled: true, memory_mib };
}

describe("devices of an agent", () => {
  it("are counted with their memory", () => {
    const slots = [slot("A100 MIG 1g.5gb", 5120), slot("A100 MIG 1g.5gb", 5120), slot("CPU", null)];
    expect(deviceText(slots)).toBe("2 A100 MIG 1g.5gb of 5.0 GiB, 1 CPU");
  });

  it("are empty without slots", () => {
    expect(deviceText([])).toBe("");
  });

  it("have their type without a name", () => {
    expect(deviceText([slot("", null)])).toBe("1 cuda");
  });
});
