# The router, without anything that only training needs. See docs/deploy.md.
#   docker build --tag steersman:0.1.0 .
#   docker run --publish 8080:8080 --volume ./router.yaml:/etc/steersman/router.yaml:ro steersman:0.1.0

FROM python:3.12-slim AS build
WORKDIR /source
COPY . .
# Into an environment of its own, which is all that the second stage takes.
RUN python -m venv /opt/steersman \
 && /opt/steersman/bin/pip install --no-cache-dir --constraint requirements/lock.txt '.[discovery,fast,tokenizer]'

FROM python:3.12-slim
RUN groupadd --gid 10001 steersman \
 && useradd --uid 10001 --gid steersman --no-create-home --shell /usr/sbin/nologin steersman \
 && install --directory --owner steersman --group steersman /var/lib/steersman
COPY --from=build /opt/steersman /opt/steersman
ENV PATH=/opt/steersman/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    OMP_NUM_THREADS=1 \
    XDG_CACHE_HOME=/var/lib/steersman/cache
USER 10001:10001
WORKDIR /var/lib/steersman
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/live', timeout=2)"]
ENTRYPOINT ["steersman"]
CMD ["serve", "--config", "/etc/steersman/router.yaml", "--host", "0.0.0.0"]
