# The relay. Everything is set by environment (docs/operations.md); REDIS_URL and a key for tokens are the least.
# Give `docker stop` more than the drain (HOLDFAST_DRAIN_MS, 30 s): docker stop --time 50.

FROM node:24-bookworm-slim AS build
WORKDIR /app
COPY package.json package-lock.json .npmrc ./
# before the sources, so that a change in them doesn't install again; `prepare` would build what isn't there yet
RUN npm ci --ignore-scripts
COPY build.mjs tsconfig.json tsconfig.build.json ./
COPY src src
RUN npm run build && npm prune --omit=dev --ignore-scripts

FROM node:24-bookworm-slim
LABEL org.opencontainers.image.title="holdfast" \
      org.opencontainers.image.description="A durable event relay for Socket.IO back ends" \
      org.opencontainers.image.licenses="MIT"
ENV NODE_ENV=production
WORKDIR /app
COPY LICENSE package.json ./
COPY --from=build /app/node_modules node_modules
COPY --from=build /app/dist dist
COPY migrations migrations
# the image's user `node`, by number: Kubernetes' runAsNonRoot can't judge a name; the files stay root's
USER 1000:1000
EXPOSE 3000 3001
ENTRYPOINT ["node", "dist/cli/main.js"]
CMD ["serve"]
