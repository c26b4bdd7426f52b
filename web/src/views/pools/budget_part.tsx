/** What a pool may spend in a month, and how much of that it has spent. */

import { useState } from "preact/hooks";
import { send, type Schemas } from "../../api/client";
import { FormDialog } from "../../parts/dialog";
import { dollarsText } from "../../parts/format";
import { useIsAdmin } from "../../shell/who";
import { budgetShare } from "./months";

interface Props {
  pool: Schemas["ResourcePoolWhole"];
  onDone: () => Promise<void>;
}

export function BudgetPart({ pool, onDone }: Props) {
  const [edits, setEdits] = useState(false);
  const isAdmin = useIsAdmin();
  const { budget, instance_cost: spent, idle_cost: idle } = pool.costs;
  const share = budgetShare(spent, budget);
  return (
    <>
      <dt>This month</dt>
      <dd>
        instances cost {dollarsText(spent)}, {dollarsText(idle)} of it idle; budget {budget === null ? "none" : dollarsText(budget)}{" "}
        {share !== null && (
          <><meter min={0} max={1} high={0.9} value={Math.min(1, share)} aria-label="spent of the budget" /> {Math.round(share * 100)} %{" "}</>
        )}
        {isAdmin && <button onClick={() => setEdits(true)}>Change budget</button>}
      </dd>
      {edits && <BudgetDialog pool={pool} onDone={onDone} onClose={() => setEdits(false)} />}
    </>
  );
}

function BudgetDialog({ pool, onDone, onClose }: Props & { onClose: () => void }) {
  const [first] = useState(pool.costs.budget === null ? "" : String(pool.costs.budget));
  const [text, setText] = useState(first);
  async function save(): Promise<void> {
    const override = `budget=${text === "" ? "null" : Number(text)}`;
    await send("put", "/api/v1/resource-pools/{resource_pool}", {
      path: { resource_pool: pool.name },
      body: { overrides: [override] },
    });
    await onDone();
  }
  return (
    <FormDialog title={`Budget of ${pool.name}`} action="Save" submit={save} onClose={onClose} isChanged={text !== first}>
      <p>
        What its instances may cost in a month (UTC). Beyond it nothing starts and no instance is launched until the
        next month; what runs goes on.
      </p>
      <label>Dollars a month, empty for no limit{" "}
        <input type="number" min="0.01" step="any" value={text} onInput={(event) => setText(event.currentTarget.value)} />
      </label>
    </FormDialog>
  );
}
