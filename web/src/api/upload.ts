/** Uploads of whole files, with their progress, which `fetch` tells nobody. */

import { ApiError, readFailure, unreachableText } from "./client";
import { apiUrl } from "./place";
import { sessionHeaders, sessionKey } from "./session";

interface Options {
  /** Whether the path is signed, and needs no session. */
  isSigned: boolean;
  /** Hears of the bytes that were sent. */
  onProgress: (sent: number) => void;
  signal: AbortSignal;
}

/** PUT a file at a path of the API. */
export function putFile(path: string, file: Blob, { isSigned, onProgress, signal }: Options): Promise<void> {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    const key = sessionKey();
    request.open("PUT", apiUrl() + path);
    const headers = key && !isSigned ? sessionHeaders(key) : {};
    for (const [name, value] of Object.entries(headers)) request.setRequestHeader(name, value);
    request.upload.onprogress = ({ loaded }) => onProgress(loaded);
    request.onload = () => {
      if (request.status < 300) resolve();
      else reject(readFailure(request.status, request.responseText));
    };
    request.onerror = () => reject(new ApiError(0, "unreachable", unreachableText()));
    request.onabort = () => reject(new DOMException("the upload was stopped", "AbortError"));
    signal.addEventListener("abort", () => request.abort());
    request.send(file);
  });
}
