import { TEST_API_KEY } from '../harness/pod.js';

export interface PublishAnswer {
  readonly status: number;
  readonly body: {
    readonly position?: string;
    readonly code?: string;
    readonly results?: readonly { readonly ok: boolean }[];
  };
}

/** `POST /v1/publish` of one event or a list. */
export async function httpPublish(url: string, events: object | readonly object[]): Promise<PublishAnswer> {
  const response = await fetch(`${url}/v1/publish`, {
    method: 'POST',
    headers: { authorization: `Bearer ${TEST_API_KEY}`, 'content-type': 'application/json' },
    body: JSON.stringify(events),
  });
  return { status: response.status, body: (await response.json()) as PublishAnswer['body'] };
}
