/** The hyperparameters and the search as fields. A change of a field changes the YAML, and the reverse. */

import { changeField, findFields, type ConfigField } from "./config_fields";
import "./create.css";

interface Props {
  /** The configuration as YAML. */
  text: string;
  onChange: (text: string) => void;
}

export function FieldsPart({ text, onChange }: Props) {
  return (
    <>
      {findFields(text).map(({ name, title, fields, reason }) => (
        <fieldset key={name} class="config-fields">
          <legend>{title}</legend>
          {reason && <p class="quiet">{reason}</p>}
          {fields.map((field) => <Field key={field.name} field={field} text={text} onChange={onChange} />)}
        </fieldset>
      ))}
    </>
  );
}

function Field({ field, text, onChange }: Props & { field: ConfigField }) {
  const { name, value, place, reason } = field;
  return (
    <label>
      <span>{name}</span>
      <input value={value} readOnly={place === null} spellcheck={false}
        onInput={(event) => place && onChange(changeField(text, place, event.currentTarget.value))} />
      {reason && <small>{reason}</small>}
    </label>
  );
}
