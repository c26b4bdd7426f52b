/** Who one is, and the tokens that one has made. */

import { collect, get, send, type Schemas } from "../../api/client";
import { useLive } from "../../live/use_live";
import { Action } from "../../parts/dialog";
import { Heading } from "../../parts/heading";
import { Badge, Empty, Moment, Shown } from "../../parts/status";
import { Table, type Column } from "../../parts/table";

type Token = Schemas["Token"];

export function TokensView() {
  const who = useLive("whoami", (signal) => get("/api/v1/whoami", { signal }), () => "still");
  const cluster = useLive("cluster", (signal) => get("/api/v1/cluster", { signal }), () => "still");
  const live = useLive("tokens", (signal) =>
    collect((cursor) => get("/api/v1/tokens", { query: { limit: 500, cursor }, signal }), 1000), () => "still");
  const revoke = async ({ id }: Token) => {
    await send("delete", "/api/v1/tokens/{token_id}", { path: { token_id: id } });
    await live.refresh();
  };
  return (
    <>
      <Heading title="Tokens" />
      <Shown live={who}>{({ user, role }) => <p>You are {user}, with the role {role}.</p>}</Shown>
      <Shown live={cluster}>{(one) => <p class="quiet">Cluster {one.cluster_id}, version {one.version}</p>}</Shown>
      <p class="quiet">
        Create tokens with <code>detcloud token create</code>. A token that this page created would end with your session.
      </p>
      <Shown live={live}>
        {({ items, next }) => items.length === 0 ? <Empty>No tokens yet.</Empty> : (
          <>
            <Table label="tokens" rows={items} rowKey={({ id }) => id} columns={tokenColumns(revoke)} />
            {next && <p class="quiet">{items.length} are shown, and there are more; sorting is among these.</p>}
          </>
        )}
      </Shown>
    </>
  );
}

function tokenColumns(revoke: (token: Token) => Promise<void>): Column<Token>[] {
  return [
    { key: "id", title: "Id", isNumber: true, show: ({ id }) => id, value: ({ id }) => id },
    { key: "user", title: "User", show: ({ user }) => user, value: ({ user }) => user },
    { key: "role", title: "Role", show: (token) => token.resource_pool ? `${token.role} ${token.resource_pool}` : token.role },
    { key: "description", title: "Description", show: ({ description }) => description || "–" },
    { key: "created", title: "Created", show: (token) => <Moment ms={token.created_ms} />, value: (token) => token.created_ms },
    { key: "expires", title: "Expires", show: (token) => <Moment ms={token.expires_ms} />, value: (token) => token.expires_ms },
    {
      key: "actions",
      title: "Actions",
      show: (token) => token.revoked
        ? <Badge state="REVOKED" />
        : <Action label="Revoke" question={`Revoke token ${token.id}, and all tokens that were created with it? This cannot be undone.`} run={() => revoke(token)} />,
    },
  ];
}
