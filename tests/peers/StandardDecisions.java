import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.InetAddress;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.internals.PluginMetricsImpl;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.metadata.authorizer.StandardAcl;
import org.apache.kafka.metadata.authorizer.StandardAuthorizer;
import org.apache.kafka.server.authorizer.Action;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;
import org.apache.kafka.server.authorizer.AuthorizationResult;

/** Reads sets of ACLs and questions, and prints the decisions of Kafka's StandardAuthorizer. */
public class StandardDecisions {
    record Client(String user, String host) implements AuthorizableRequestContext {
        public String listenerName() { return "public"; }
        public SecurityProtocol securityProtocol() { return SecurityProtocol.SASL_SSL; }
        public KafkaPrincipal principal() { return new KafkaPrincipal("User", user); }
        public InetAddress clientAddress() {
            try { return InetAddress.getByName(host); } catch (Exception e) { throw new RuntimeException(e); }
        }
        public int requestType() { return 0; }
        public int requestVersion() { return 0; }
        public String clientId() { return "test"; }
        public int correlationId() { return 0; }
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        StringBuilder answers = new StringBuilder();
        StandardAuthorizer authorizer = null;
        Map<Uuid, StandardAcl> acls = null;
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] f = line.split(" ");
            switch (f[0]) {
                case "set" -> {
                    acls = new HashMap<>();
                    authorizer = new StandardAuthorizer();
                    authorizer.withPluginMetrics(new PluginMetricsImpl(new Metrics(), Map.of()));
                    authorizer.configure(Map.of("node.id", "1", "super.users", "User:root",
                        "allow.everyone.if.no.acl.found", f[1]));
                }
                case "acl" -> acls.put(Uuid.randomUuid(), new StandardAcl(
                    ResourceType.fromCode((byte) Integer.parseInt(f[1])), f[2],
                    PatternType.fromCode((byte) Integer.parseInt(f[3])), f[4], f[5],
                    AclOperation.fromCode((byte) Integer.parseInt(f[6])),
                    AclPermissionType.fromCode((byte) Integer.parseInt(f[7]))));
                case "loaded" -> {
                    authorizer.loadSnapshot(acls);
                    authorizer.completeInitialLoad();
                }
                case "may" -> {
                    AclOperation operation = AclOperation.fromCode((byte) Integer.parseInt(f[3]));
                    ResourceType type = ResourceType.fromCode((byte) Integer.parseInt(f[4]));
                    Client client = new Client(f[1], f[2]);
                    AuthorizationResult result = f.length == 5
                        ? authorizer.authorizeByResourceType(client, operation, type)
                        : authorizer.authorize(client, List.of(new Action(operation,
                            new ResourcePattern(type, f[5], PatternType.LITERAL), 1, false, false))).get(0);
                    answers.append(result == AuthorizationResult.ALLOWED ? '1' : '0');
                }
                default -> throw new IllegalArgumentException(line);
            }
        }
        System.out.println(answers);
    }
}
