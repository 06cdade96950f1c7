/** What is said of a connection that wants its device: by Redis, or by its twin in this process. */
export type SessionVerdict =
  | {
      readonly is: 'taken';
      /** By Redis's clock; what this process decided has none. */
      readonly at: number | undefined;
      /** Holder that lost it, or ''. */
      readonly from: string;
    }
  | {
      readonly is: 'contested';
      readonly by: 'settle' | 'loop';
      readonly holder: string;
      readonly waitMs: number;
    }
  | { readonly is: 'limited'; readonly by: 'flap' | 'throttle'; readonly waitMs: number };
