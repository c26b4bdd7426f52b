import { expect, test } from "vitest";
import { proxyPorts } from "./ways_in";

test("ports of a configuration are listed once, in order", () => {
  const entries = [{ proxy_port: 8265, proxy_tcp: true }, { proxy_port: 6006 }, { proxy_port: 8265 }];
  expect(proxyPorts({ environment: { proxy_ports: entries } })).toEqual([8265, 6006]);
});

test("a configuration without ports has none", () => {
  expect(proxyPorts()).toEqual([]);
  expect(proxyPorts({ environment: { image: "python" } })).toEqual([]);
});
