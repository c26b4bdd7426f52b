/** Keeps a fault of a part of the page from taking the others with it. */

import { Component, type ComponentChildren } from "preact";
import { Failure } from "../parts/status";

interface Props {
  children: ComponentChildren;
  /** Whether it is around everything, so that only a reload helps. */
  isWhole?: boolean;
}

export class Fence extends Component<Props, { error?: Error }> {
  override state: { error?: Error } = {};
  override componentDidCatch(error: Error): void {
    this.setState({ error });
  }
  override render() {
    const { error } = this.state;
    if (!error) return this.props.children;
    return this.props.isWhole
      ? <Failure error={error} action="Reload the page" retry={() => location.reload()} />
      : <Failure error={error} retry={() => this.setState({})} />;
  }
}
