# The command line, Spark, and the page that shows a store:
#   docker build -t elasticscan .
#   docker run --rm -v "$PWD/data:/data" elasticscan status /data/shop.store
#   docker run --rm -v "$PWD/data:/data" -p 127.0.0.1:8765:8765 elasticscan ui /data/shop.store --host 0.0.0.0
FROM python:3.12-slim AS built
COPY . /source
RUN pip wheel --no-deps --wheel-dir /wheels /source

FROM python:3.12-slim
RUN apt-get update && apt-get install -y --no-install-recommends default-jre-headless \
    && rm -rf /var/lib/apt/lists/*
COPY --from=built /wheels /wheels
RUN pip install --no-cache-dir "$(ls /wheels/*.whl)[spark,cli,sql,postgres,redis,s3]" && rm -rf /wheels
# Files of a store are its owner's: run with `--user "$(id -u):$(id -g)"` where they shall be yours.
RUN useradd --create-home elasticscan && install -d -o elasticscan /data
USER elasticscan
WORKDIR /data
ENV PYSPARK_PYTHON=/usr/local/bin/python3
ENTRYPOINT ["elasticscan"]
CMD ["--help"]
