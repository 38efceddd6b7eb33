import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import javax.security.auth.callback.Callback;
import javax.security.auth.callback.UnsupportedCallbackException;
import javax.security.auth.login.AppConfigurationEntry;
import org.apache.kafka.common.security.auth.AuthenticateCallbackHandler;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerToken;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerTokenCallback;

/** The settings of a client that comes by a way of tests/clients/drivers/serve.py, and its tokens. */
public final class Login {
    private static final int SECONDS = 2;
    private static final String MODULES = "org.apache.kafka.common.security.";

    private Login() {
    }

    static Properties settings(JsonNode way) throws IOException {
        Properties made = new Properties();
        made.put("bootstrap.servers", way.get("bootstrap").asText());
        made.put("security.protocol", way.get("protocol").asText());
        made.put("default.api.timeout.ms", String.valueOf(SECONDS * 1000));
        made.put("request.timeout.ms", String.valueOf(SECONDS * 1000));
        made.put("ssl.truststore.type", "PEM");
        made.put("ssl.truststore.location", way.get("ca").asText());
        if (way.has("certificate")) {
            made.put("ssl.keystore.type", "PEM");
            made.put("ssl.keystore.certificate.chain", Files.readString(Path.of(way.get("certificate").asText())));
            made.put("ssl.keystore.key", Files.readString(Path.of(way.get("key").asText())));
        }
        if (way.has("mechanism")) {
            login(made, way, way.get("mechanism").asText());
        }
        return made;
    }

    private static void login(Properties made, JsonNode way, String mechanism) {
        made.put("sasl.mechanism", mechanism);
        if (way.has("token")) {
            made.put("sasl.login.callback.handler.class", "Login$Tokens");
            made.put("sasl.login.refresh.min.period.seconds", "0");
            made.put("sasl.login.refresh.buffer.seconds", "0");
            made.put("sasl.jaas.config", MODULES + "oauthbearer.OAuthBearerLoginModule required file=\""
                + way.get("token").asText() + "\";");
        } else {
            String module = mechanism.equals("PLAIN") ? "plain.PlainLoginModule" : "scram.ScramLoginModule";
            made.put("sasl.jaas.config", MODULES + module + " required username=\"" + way.get("user").asText()
                + "\" password=\"" + way.get("password").asText() + "\";");
        }
    }

    /** Gives the token of this moment; a client is not to judge its end itself, so none has ended. */
    public static final class Tokens implements AuthenticateCallbackHandler {
        private Path file;

        @Override
        public void configure(Map<String, ?> settings, String mechanism, List<AppConfigurationEntry> entries) {
            file = Path.of((String) entries.get(0).getOptions().get("file"));
        }

        @Override
        public void handle(Callback[] callbacks) throws IOException, UnsupportedCallbackException {
            for (Callback one : callbacks) {
                if (!(one instanceof OAuthBearerTokenCallback)) {
                    throw new UnsupportedCallbackException(one);
                }
                String value = Files.readString(file);
                JsonNode claims = new ObjectMapper().readTree(Base64.getUrlDecoder().decode(value.split("\\.")[1]));
                long now = System.currentTimeMillis();
                long ends = Math.max(claims.get("exp").asLong() * 1000, now + SECONDS * 1000);
                ((OAuthBearerTokenCallback) one).token(new Token(value, now, ends));
            }
        }

        @Override
        public void close() {
        }
    }

    private record Token(String value, long began, long ends) implements OAuthBearerToken {
        @Override
        public Set<String> scope() {
            return Set.of();
        }

        @Override
        public long lifetimeMs() {
            return ends;
        }

        @Override
        public String principalName() {
            return "alice";
        }

        @Override
        public Long startTimeMs() {
            return began;
        }
    }
}
