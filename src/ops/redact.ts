const HIDDEN = '***';
const MAX_TEXT_LENGTH = 8192;

/**
 * Fields whose value is a secret, however deep: compared in lower case without `-` and `_`, by their end, so that
 * `accessToken`, `x-api-key` and `HOLDFAST_JWT_SECRET` are among them.
 */
const SECRET_FIELD =
  /(token|jwt|authorization|cookie|secret|password|passwd|passphrase|credential|apikey|privatekey)s?$|^(auth|pass|sid|pid|args)$/;

/** Names of secrets inside a text. */
const NAMES = '(?:[\\w-]*(?:token|secret|password|passwd|api[_-]?key|authorization)|auth|jwt|sid|pid)';
/** User and password of a URL, also when the password holds an unescaped `/` or `@`; a port is not a password. */
const URL_LOGIN = /(:\/\/)(?:[^\s/?#"'<>@:]{0,256}:(?!\d{1,5}[/?#])[^\s"'<>]{0,4096}@|[^\s/?#"'<>]{0,4096}@)/g;
const BEARER = /\b(bearer|basic)\s+[\w.~+/=-]{4,}/gi;
const JWT = /\beyJ[\w-]{4,}(?:\.[\w-]*){1,4}/g;
const ASSIGNED = new RegExp(`(^|[?&;,\\s"'{(\\\\])(${NAMES})=[^&\\s"'#;,)}\\\\]+`, 'gi');
/** JSON inside a text, where its quotes may be escaped. */
const QUOTED = new RegExp(`(\\\\{0,4}["'])(${NAMES})\\1\\s*:\\s*(\\\\{0,4}["'])(?:(?!\\3)(?:\\\\[^]|[^\\\\]))*`, 'gi');

/** `text` without the secrets that can be told by their shape: logins in URLs, bearer tokens, JWTs, `token=…`. */
export function redactText(text: string): string {
  return shortened(text)
    .replace(URL_LOGIN, `$1${HIDDEN}@`)
    .replace(JWT, HIDDEN)
    .replace(BEARER, `$1 ${HIDDEN}`)
    .replace(ASSIGNED, `$1$2=${HIDDEN}`)
    .replace(QUOTED, `$1$2$1:$3${HIDDEN}`);
}

/** The cut drops the word that it falls into: half a secret has no shape to be told by. */
function shortened(text: string): string {
  return text.length <= MAX_TEXT_LENGTH ? text : `${text.slice(0, MAX_TEXT_LENGTH).replace(/\S{1,4096}$/, '')}…`;
}

/**
 * One finished line of JSON without its secrets. It works on the line and not on what was passed to the logger, so that
 * nothing gets around it: bindings of child loggers, errors with their causes, what a serializer made.
 */
export function redactLine(line: string): string {
  try {
    return `${JSON.stringify(JSON.parse(line, redactField))}\n`;
  } catch {
    return `${redactText(line.trimEnd())}\n`;
  }
}

function redactField(key: string, value: unknown): unknown {
  if (isSecret(key, value)) return HIDDEN;
  return typeof value === 'string' ? redactText(value) : value;
}

function isSecret(key: string, value: unknown): boolean {
  if (!SECRET_FIELD.test(key.toLowerCase().replace(/[-_]/g, ''))) return false;
  switch (key) {
    case 'pid':
      // Socket.IO's private session id resumes a connection; the number is the operating system's
      return typeof value === 'string';
    case 'auth':
      // a handshake's `auth` is an object, whose fields are judged one by one
      return typeof value === 'string';
    case 'args':
      // ioredis puts a command's arguments on its errors: AUTH's password, and everybody's payloads
      return Array.isArray(value);
    default:
      // that a setting is unset is no secret
      return !(
        value === null ||
        value === '' ||
        typeof value === 'boolean' ||
        (Array.isArray(value) && value.length === 0)
      );
  }
}
