#!/bin/sh
# Writes the rate that Plimsoll finds admissible for one model into the routes that Envoy watches.
# It needs curl, jq and awk. See docs/admission.md.
set -eu

PLIMSOLL=${PLIMSOLL:-http://plimsoll.plimsoll:8080}
NAMESPACE=${NAMESPACE:?the namespace of the model}
MODEL=${MODEL:?the model, as its engines call it}
TEMPLATE=${TEMPLATE:-/etc/plimsoll/routes.yaml.in}
ROUTES=${ROUTES:-/etc/envoy/admission/routes.yaml}
PERIOD=${PERIOD:-2}         # seconds between two readings
SHARE=${SHARE:-1}           # of the admissible rate, divided by the number of Envoys
BATCH=${BATCH:-0.5}         # of that, for requests of low priority
KEEP=${KEEP:-60}            # seconds for which the last rate holds while none is known
UNLIMITED=1000000

rate_now() {
    curl -fsS --max-time 2 -G "$PLIMSOLL/api/v1/decisions" \
        --data-urlencode "namespace=$NAMESPACE" --data-urlencode "model=$MODEL" |
        jq -r '[.variants[] | select(.age_seconds != null and .age_seconds < 45)
                | .model_admissible_per_second | numbers] | first // empty'
}

# Envoy fills whole tokens, so a low rate fills every ten seconds.
write_routes() {
    awk -v rate="$1" -v batch="$BATCH" '
        BEGIN {
            fill = rate < 10 ? 10 : 1
            tokens = int(rate * fill + 0.5); if (tokens < 1) tokens = 1
            low = int(tokens * batch + 0.5); if (low < 1) low = 1
        }
        { gsub(/@TOKENS@/, tokens); gsub(/@BATCH@/, low)
          gsub(/@FILL@/, fill); print }' "$TEMPLATE" > "$ROUTES.next"
    mv "$ROUTES.next" "$ROUTES"   # Envoy watches for the move
}

written=
known_at=0
while :; do
    now=$(date +%s)
    rate=$(rate_now) || rate=
    if [ -n "$rate" ]; then
        known_at=$now
        wanted=$(awk -v rate="$rate" -v share="$SHARE" 'BEGIN { print rate * share }')
    elif [ $((now - known_at)) -gt "$KEEP" ]; then
        wanted=$UNLIMITED
    else
        wanted=$written
    fi

    # New routes begin with a full bucket, so a change of less than 5% is left alone.
    if [ -n "$wanted" ] && awk -v a="$wanted" -v b="${written:-0}" \
        'BEGIN { d = a - b; if (d < 0) d = -d; exit !(d > 0.05 * b) }'; then
        write_routes "$wanted"
        written=$wanted
        echo "admitting $wanted requests/s"
    fi
    sleep "$PERIOD"
done
