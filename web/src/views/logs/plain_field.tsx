/** A field of text that the address has, which is no search. */

import { useDraft } from "../../parts/draft";
import { setQuery, useRoute } from "../../shell/router";

interface Props {
  name: string;
  title: string;
  placeholder: string;
  isWrong: boolean;
}

export function PlainField({ name, title, placeholder, isWrong }: Props) {
  const draft = useDraft(useRoute().query.get(name) ?? "", (text) => setQuery({ [name]: text }));
  return <label>{title} <input type="text" size={10} placeholder={placeholder} aria-invalid={isWrong} {...draft} /></label>;
}
